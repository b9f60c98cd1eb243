//! The faults that Tollgate is tested against, and its promise for each: the source of docs/reliability.md.

/// One row of the page.
pub(crate) struct Fault {
    /// Tests of a fault have names that start with `fault_NUMBER_`.
    pub(crate) number: u32,
    pub(crate) input: &'static str,
    pub(crate) promise: &'static str,
    /// Further tests that check the same promise under other names.
    pub(crate) also: &'static [&'static str],
}

pub(crate) const FAULTS: &[Fault] = &[
    Fault {
        number: 1,
        input: "`Content-Length` and `Transfer-Encoding` together",
        promise: "400, connection closed, nothing forwarded",
        also: &[],
    },
    Fault {
        number: 2,
        input: "two different `Content-Length` values, `+5`, `5,5`, `0x5`, 2^64, negative",
        promise: "400; two equal values count as one",
        also: &[],
    },
    Fault {
        number: 3,
        input: "any transfer coding except a single `chunked`; chunked in HTTP/1.0",
        promise: "400 or 501",
        also: &[],
    },
    Fault {
        number: 4,
        input: "chunk sizes such as `0x2`, endless extensions, bare LF, no final CRLF",
        promise: "400, connection closed; no mutation makes a backend see more requests than are answered",
        also: &["no_mutation_makes_the_backend_receive_more_requests_than_the_client_gets_responses"],
    },
    Fault {
        number: 5,
        input: "folded lines, NUL, CR or LF in values, a space before the colon, bare LF",
        promise: "400",
        also: &[],
    },
    Fault {
        number: 6,
        input: "a body on a refused request",
        promise: "read within a bound, or the connection is closed; never parsed as a request",
        also: &[],
    },
    Fault {
        number: 7,
        input: "bytes sent before an upgrade is granted, and it is not",
        promise: "parsed as a separate request",
        also: &[],
    },
    Fault {
        number: 8,
        input: "`Connection: X-Forwarded-For`",
        promise: "the client's header is removed, the gate's header stays",
        also: &[],
    },
    Fault {
        number: 9,
        input: "`Expect: 100-continue` on a refused request",
        promise: "the final response without a 100",
        also: &[],
    },
    Fault {
        number: 10,
        input: "no `Host`, two, an empty one, one that differs from the target",
        promise: "400",
        also: &[],
    },
    Fault {
        number: 11,
        input: "backend response with two lengths, an unknown transfer coding or folded fields; not HTTP; \
                truncated; with a body for HEAD, 204 or 304, bytes after the body, hundreds of fields, or white \
                space before a colon",
        promise: "502 or a closed connection, logged with the reason; excess bytes are not forwarded, and the \
                  connection to the backend is not reused if any remain",
        also: &[
            "a_truncated_response_is_never_forwarded_as_complete",
            "a_502_is_logged_with_its_reason_and_a_storm_of_them_in_a_few_lines",
            "a_response_with_hundreds_of_fields_is_forwarded",
            "white_space_before_a_colon_is_removed_from_responses",
        ],
    },
    Fault {
        number: 12,
        input: "heads, bodies and reads that are slow or stop; clients that do not read their downloads",
        promise: "disconnected at the deadline or below the minimum rate; other clients are served without delay; \
                  slow but steady clients are served and charged for the backend's work only; responses are buffered \
                  in memory and then in a bounded file, which frees the backend, and arrive complete",
        also: &[
            "a_slow_upload_arrives_complete_and_is_charged_the_time_of_the_backend",
            "a_stalled_body_that_the_backend_ignores_does_not_reduce_the_charge",
            "an_upload_refused_without_a_backend_holds_no_permit",
            "a_client_that_reads_slowly_but_steadily_gets_the_whole_response",
            "clients_that_do_not_read_occupy_no_worker_of_the_backend",
            "streams_whose_client_does_not_read_occupy_no_worker_of_the_backend",
            "a_full_spool_blocks_the_backend_and_loses_nothing",
            "one_address_fills_only_its_part_of_the_spool",
            "without_a_spool_directory_memory_is_used_and_one_line_is_logged",
            "a_client_with_a_closed_window_is_charged_and_counts_as_in_flight",
            "a_client_that_does_not_read_is_charged_and_counts_as_in_flight",
            "a_client_that_reads_slowly_but_steadily_is_charged_for_the_backend_alone",
        ],
    },
    Fault {
        number: 13,
        input: "a header line of 1 MiB, 10,000 headers, a URL of 100 KiB",
        promise: "431 or 414; at most 64 KiB are held",
        also: &[],
    },
    Fault {
        number: 14,
        input: "unlimited connections that are idle, or silent before a PROXY header, TLS, HTTP/2 or their first \
                request",
        promise: "bounded on accept, per address and in total; connections without any request are closed first, \
                  then those that have been idle for longest",
        also: &["ten_thousand_idle_connections_are_served_and_cost_less_than_4_kilobytes_each"],
    },
    Fault {
        number: 15,
        input: "no file descriptors left",
        promise: "the gate continues and counts it; the backend is not marked as failed",
        also: &[],
    },
    Fault {
        number: 16,
        input: "HTTP/2: rapid reset, streams that make the gate reset them, floods of CONTINUATION, empty DATA, \
                SETTINGS, PING, header bombs",
        promise: "ENHANCE_YOUR_CALM; memory is constant; each started request is charged, also incomplete ones",
        also: &[
            "a_client_pins_at_most_ten_times_what_it_has_sent_beyond_a_constant",
            "requests_beyond_the_memory_budget_of_their_connection_wait_and_are_served",
            "stalled_uploads_do_not_block_other_requests_of_their_connection",
            "a_client_that_reads_no_response_is_disconnected",
            "unread_interim_responses_take_no_memory",
            "unread_response_heads_are_bounded",
        ],
    },
    Fault {
        number: 17,
        input: "a thousand streams on one connection",
        promise: "each counts as a request, and as one in flight",
        also: &[],
    },
    Fault {
        number: 18,
        input: "bodies of gigabytes",
        promise: "streamed in constant memory in both directions",
        also: &[],
    },
    Fault {
        number: 19,
        input: "`X-Forwarded-For` from an untrusted client",
        promise: "ignored and not forwarded",
        also: &[],
    },
    Fault {
        number: 20,
        input: "`X-Forwarded-For` with ports, brackets, `unknown`, IPv4 in IPv6, thousands of elements",
        promise: "one key for one client; the first invalid element ends the evaluation",
        also: &[],
    },
    Fault {
        number: 21,
        input: "unlimited addresses from one IPv6 network",
        promise: "one key for each /64, /56 and /48",
        also: &[],
    },
    Fault {
        number: 22,
        input: "a million invented API keys, device ids or user agents",
        promise: "memory is constant, keys with debt keep it, regular keys are not evicted, and keys without a slot \
                  share one limit",
        also: &[
            "a_million_invented_keys_do_not_free_an_offender",
            "regular_clients_are_served_during_a_flood_of_keys",
            "new_clients_are_served_during_a_flood_of_keys",
            "a_large_table_keeps_every_debt",
        ],
    },
    Fault {
        number: 23,
        input: "keys that an attacker chose for hash collisions",
        promise: "the hash has a random seed, so they spread like any other keys; the cost of a decision is constant",
        also: &["chosen_keys_cannot_target_a_row", "the_cost_of_a_decision_does_not_depend_on_the_number_of_keys"],
    },
    Fault {
        number: 24,
        input: "a PROXY header from an untrusted peer, or none where one is required",
        promise: "connection closed",
        also: &[],
    },
    Fault {
        number: 25,
        input: "thirty people behind one address, six connections each",
        promise: "no request is refused",
        also: &[],
    },
    Fault {
        number: 26,
        input: "a crawler distributed over a network, over user agents, over addresses",
        promise: "limited by the property that its requests share",
        also: &[],
    },
    Fault {
        number: 27,
        input: "settings with a rate or burst of 0, -1, NaN, infinity, 1e308, 1e-300, 2^63, a period of 0, a burst \
                below one request",
        promise: "the start is refused with file, line, column and reason; no panic, no silent default",
        also: &["invalid_values_of_a_limit_are_errors"],
    },
    Fault {
        number: 28,
        input: "a backend that reports a cost of NaN, -5, 1e300, \"abc\"",
        promise: "ignored, counted, and estimated instead",
        also: &[],
    },
    Fault {
        number: 29,
        input: "a wall clock that steps one hour back or one year forward while the gate runs",
        promise: "no client is released or blocked; only printed times change",
        also: &[],
    },
    Fault {
        number: 30,
        input: "a quantity of 0, one above the limit, and 2^64 - 1",
        promise: "0 reads without charging; one that can never fit is refused without a retry time; numbers out of \
                  range are an error",
        also: &["a_quantity_of_zero_looks_and_one_above_the_limit_never_fits", "nothing_overflows"],
    },
    Fault {
        number: 31,
        input: "a rate of 10^9 per second, one request per nanosecond, for a day",
        promise: "integer arithmetic agrees with unbounded integers",
        also: &[
            "a_billion_per_second_is_exact_over_a_day",
            "a_rate_agrees_with_exact_fractions",
            "a_third_of_a_nanosecond_is_never_lost",
        ],
    },
    Fault {
        number: 32,
        input: "two threads or two gates that take the last token",
        promise: "exactly one succeeds",
        also: &["many_threads_on_one_bucket_admit_exactly_its_size", "four_processes_admit_exactly_the_limit"],
    },
    Fault {
        number: 33,
        input: "orders or reports that are forged, modified, replayed, or from a peer without a known key",
        promise: "disconnected and counted, never applied",
        also: &[],
    },
    Fault {
        number: 34,
        input: "a delay until the year 9999, until 0, -1 or tomorrow; empty identifiers or of 1 MiB; too few or \
                too many frames",
        promise: "dropped and counted, without disconnecting the sender; no client is blocked for more than an hour",
        also: &[],
    },
    Fault {
        number: 35,
        input: "a gate that starts while a thousand clients are delayed",
        promise: "it delays them too once it is connected to the master",
        also: &[],
    },
    Fault {
        number: 36,
        input: "a master that is killed and restarted ten times in a minute",
        promise: "no request fails, admitted requests stay within the bound, no limit is refilled",
        also: &[],
    },
    Fault {
        number: 37,
        input: "gates that cannot reach the master for 30 s",
        promise: "each gate enforces the limit alone, nothing is queued for the master, and no client is blocked \
                  afterwards for requests served meanwhile",
        also: &["a_fleet_keeps_its_bound_over_a_bad_network_and_through_a_partition"],
    },
    Fault {
        number: 38,
        input: "half of all messages lost, others duplicated, late and out of order",
        promise: "the bound holds, and no client owes more than it was served",
        also: &[],
    },
    Fault {
        number: 39,
        input: "wall clocks that are five seconds off",
        promise: "a delay is as long as the debt; no client is delayed or released because of it",
        also: &[],
    },
    Fault {
        number: 40,
        input: "reports faster than a master reads them",
        promise: "no request waits; one report covers many requests, the oldest reports are dropped and counted, and \
                  their lag is a metric",
        also: &[],
    },
    Fault {
        number: 41,
        input: "Redis is killed, paused, busy, slow, flushed, full or failed over (by Sentinels or in a Cluster), \
                or holds foreign values under Tollgate's names",
        promise: "no request fails, none waits longer than the deadline (50 ms), the gate's own state decides, and \
                  this is logged once a second",
        also: &["without_redis_a_gate_enforces_the_limit_alone_also_for_earlier_clients"],
    },
    Fault {
        number: 42,
        input: "a reload with an invalid file, and valid reloads under load",
        promise: "an invalid file changes nothing and is reported in the log and in a metric; no request fails",
        also: &[],
    },
    Fault {
        number: 43,
        input: "a state directory that cannot be used or has damaged content",
        promise: "the gate starts and logs it; a copy of a damaged file is kept, and every readable record counts",
        also: &[],
    },
    Fault {
        number: 44,
        input: "the admin address without a token, with a foreign `Origin`, without a CSRF token, or by DNS \
                rebinding; keys with `<script>`, line ends or escape sequences; floods of it: connections that \
                pipeline and never read, slow uploads, event streams, reports; wrong tokens from the operator's \
                own address",
        promise: "401 or 403, also on loopback, and no start beyond loopback without a token; keys are plain text in \
                  the console, in JSON, in the log and on a terminal; under a flood `/healthz` and `/readyz` \
                  respond, other addresses have their share of connections, and a valid token is accepted",
        also: &[
            "without_a_token_only_health_checks_are_answered",
            "a_change_from_a_page_needs_the_csrf_token_and_the_right_origin",
            "without_a_token_a_foreign_page_cannot_make_changes",
            "a_foreign_name_that_resolves_to_this_host_is_rejected",
            "beyond_loopback_a_token_is_required_to_start",
            "keys_are_escaped_in_json_and_in_the_log",
            "a_name_that_is_a_script_is_text_on_every_page",
            "escaped_texts_contain_no_control_sequences",
            "connections_that_pipeline_and_never_read_do_not_keep_operators_out",
            "health_checks_are_answered_while_every_other_connection_is_busy",
            "a_connection_that_never_reads_is_closed",
            "idle_connections_make_room_for_new_ones",
            "one_address_has_half_of_the_event_streams",
            "few_reports_are_processed_at_once_and_one_address_gets_half_of_the_permits",
            "a_valid_token_is_accepted_after_any_number_of_wrong_ones",
        ],
    },
    Fault {
        number: 45,
        input: "SIGTERM under load; a fleet of devices that reconnects after a restart",
        promise: "accepted requests are answered; no healthy device is throttled, and refused ones return at \
                  different times",
        also: &[],
    },
    Fault {
        number: 46,
        input: "a backend that dies, hangs, or is slow for all clients",
        promise: "502, 503 or 504 at once with `Retry-After`, and probes until it is up; a request that did not \
                  reach it costs nothing, one that did counts once, and no client is penalised",
        also: &[
            "a_hanging_backend_is_a_504_after_the_timeout",
            "error_responses_of_a_backend_are_forwarded",
            "a_client_that_requests_a_crashing_page_does_not_affect_others",
            "the_only_backend_stays_in_use_while_it_accepts_connections",
            "a_stalled_upload_does_not_delay_the_return_of_a_backend",
        ],
    },
];
