//! The counters of a worker thread, or of a thread of the doors, which count decisions for other programs. Each thread
//! has its own, so that counting takes no lock; the metrics show the sums.
//!
//! A line is: the variant, the name of the metric without its prefix `tollgate_`, and the help text.

use crate::metric::counters;

counters! {
    WorkerCounter, WorkerCounters:
    Accepted = "connections_accepted": "Connections accepted",
    TurnedAway = "connections_turned_away": "Connections closed at once at a limit, in total or of one address",
    Unopened = "connections_unopened": "Connections that failed before HTTP, in the PROXY header or TLS",
    AcceptFailed = "accept_failures": "Failures to accept a connection, for lack of file descriptors or memory",
    Calmed = "h2_calmed": "HTTP/2 connections closed because the client reset more requests than it let finish",
    Unbuffered = "h2_refused": "HTTP/2 requests refused with REFUSED_STREAM because their connection used too much memory",
    Request = "requests": "Requests read",
    Malformed = "requests_malformed": "Requests rejected because they are malformed or ambiguous",
    Misdirected = "requests_misdirected": "Requests answered with 421 because no site has their host",
    Refused = "requests_refused": "Requests refused",
    ClientLeft = "requests_left": "Requests whose client disconnected before the end of the response",
    BackendFailed = "backend_failures": "Requests without a complete response of a backend",
    Retried = "backend_retries": "Requests sent again because the backend had closed the connection",
}
