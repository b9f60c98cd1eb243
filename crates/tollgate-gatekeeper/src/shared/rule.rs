//! A rule for the script that decides in the store (`script.lua`): its parameters as numbers of the script, and the
//! names of the values (slots) in which the store has the state of its keys.
//!
//! The script computes with doubles, which are exact up to 2^53, so not every rule can be shared. Rules whose times are
//! finer than the server's clock, whose state lasts longer than a century, or which count too many requests
//! individually are rejected when the settings are read.

use tollgate_core::band::Band;
use tollgate_core::limit::{Charge, Limit, LimitInfo};
use tollgate_core::rule::{Mode, Rule, Situation};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::limit_status;

/// The reason why a rule cannot be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unshareable {
    /// A time is not a whole number of microseconds, the resolution of the server's clock.
    #[error("times of a shared rule must be whole microseconds")]
    TooFine,
    /// Its state lasts longer than a century.
    #[error("the state of a shared rule must not last longer than a century")]
    TooLong,
    /// It counts more than [`LOG_MAX`] requests individually.
    #[error("a shared window or in-flight limit must not be larger than {LOG_MAX}")]
    LogTooLong,
}

/// The maximum number of entries in the log of a shared window, and of requests in flight. The log is part of every
/// reply.
pub const LOG_MAX: u32 = 1024;

/// A century in microseconds, beyond which the script's numbers would not be exact.
const CENTURY_US: u64 = 100 * 365 * 86_400 * 1_000_000;
const NANOS_PER_MICRO: u64 = 1_000;
/// The maximum length of a key in a slot name, in bytes. Longer keys are replaced by their digest, so that clients
/// cannot fill the store with names.
const NAME_MAX: usize = 96;

/// The operation of the script for one rule and key. The number of a variant is its code in the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Check, and charge if every claim of the request has room.
    Decide,
    /// Charge unconditionally.
    Charge,
    /// Refund a request that was not forwarded, or end one that was in flight.
    Refund,
    /// Change nothing.
    Read,
    /// Remove the state, unless it counts requests in flight.
    Forget,
    /// Refund the unused part of a charge.
    Surplus,
}

/// Identifies one request in flight in the store's log. With a plain counter, a gate that dies would leave the count
/// too high; an entry of the log expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Work(u64);

impl Work {
    /// From random bits, of which the script uses 52.
    pub(super) const fn new(random: u64) -> Self {
        Self(random >> 12)
    }
}

/// The time for which a request counts as in flight after the last renewal by its gate.
pub const WORK_LIFE: Span = Span::from_secs(60);

/// A rule whose state is shared.
#[derive(Clone, Debug)]
pub struct SharedRule {
    rule: Rule,
    /// The beginning of all slot names of this rule.
    slot_prefix: Vec<u8>,
}

/// A length of time for the script: microseconds, and a rest in units of `1 / (1000 * per)` of a microsecond. With
/// `per` from [`Limit::pace`], the time of any toll is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FineSpan {
    us: u64,
    rest: u64,
}

impl FineSpan {
    /// The time of `units` if one unit takes `nanos / per` nanoseconds; at most a century.
    fn of_units(units: u64, (nanos, per): (u64, u64)) -> Self {
        let total = u128::from(units) * u128::from(nanos);
        let parts = u128::from(per) * u128::from(NANOS_PER_MICRO);
        match u64::try_from(total / parts) {
            Ok(us) if us <= CENTURY_US => Self { us, rest: (total % parts) as u64 },
            _ => Self { us: CENTURY_US, rest: 0 },
        }
    }
}

impl SharedRule {
    /// `rule` of `domain`, with slot names that start with `prefix`.
    pub fn new(prefix: &str, domain: &str, rule: Rule) -> Result<Self, Unshareable> {
        shareable(&rule)?;
        let mut shared = Self { rule, slot_prefix: Vec::new() };
        // State has another meaning under other parameters, so a rule that changes starts with new slots.
        let fingerprint = fingerprint(&shared.parameters());
        shared.slot_prefix = format!("{prefix}{domain}:{}:{fingerprint:08x}:", shared.rule.name).into_bytes();
        Ok(shared)
    }

    /// The rule itself.
    pub const fn rule(&self) -> &Rule {
        &self.rule
    }

    /// The name of the slot with `key`'s state. The part in braces determines the node of a Cluster, so all
    /// rules of one key are on one node.
    pub fn slot(&self, key: &[u8]) -> Vec<u8> {
        let mut slot = Vec::with_capacity(self.slot_prefix.len() + key.len().min(NAME_MAX) + 2);
        slot.extend_from_slice(&self.slot_prefix);
        slot.push(b'{');
        if key.is_empty() {
            slot.push(b'-');
        } else if key.len() <= NAME_MAX {
            slot.extend_from_slice(key);
        } else {
            slot.extend_from_slice(b"sha1:");
            slot.extend_from_slice(sha1_smol::Sha1::from(key).digest().to_string().as_bytes());
        }
        slot.push(b'}');
        slot
    }

    /// The operation that settles a request that was charged `reserved` and has cost `actual`, if one is
    /// needed.
    pub(super) fn settlement(rule: &Rule, reserved: Toll, actual: Toll) -> Option<(Operation, Toll)> {
        let (more, less) = (reserved.cpu_missing(actual), actual.cpu_missing(reserved));
        match &rule.limit {
            Limit::Budget(_) if !more.is_zero() => Some((Operation::Charge, Toll { cpu: more, ..reserved })),
            Limit::Budget(_) if !less.is_zero() => Some((Operation::Surplus, Toll { cpu: less, ..reserved })),
            Limit::InFlight(_) => Some((Operation::Refund, reserved)),
            Limit::Budget(_) | Limit::Rate(_) | Limit::Bucket(_) | Limit::Window(_) => None,
        }
    }

    /// The script's input to refund `toll` of a request for which `reserved` was charged, by the charge `charged`.
    pub(super) fn refund_claim(
        &self,
        operation: Operation,
        (toll, reserved): (Toll, Toll),
        work: Work,
        charged: Charge,
    ) -> ClaimBytes {
        let since = self.rule.limit.paid_since(reserved, charged).as_nanos();
        let (_, levels, release) = self.escalation();
        let pair = |nanos: u64| [nanos / NANOS_PER_MICRO, nanos % NANOS_PER_MICRO];
        let ([since_us, since_ns], [mark_us, mark_ns]) = (pair(since), pair(charged.mark));
        let first = [toll.count.min(COUNT_MAX), since_us, since_ns, mark_us, mark_ns, micros(release)];
        self.bytes([operation as u8, 1, 0, levels], first, self.numbers(toll, work), 0)
    }

    /// The script's input for `operation`, except for refunds.
    pub(super) fn claim(&self, operation: Operation, toll: Toll, work: Work, situation: &Situation) -> ClaimBytes {
        let rule = &self.rule;
        let warm = rule.warmup.is_some_and(|warmup| situation.now.since(situation.started) < warmup);
        // The band does not matter during the warm-up.
        let band = if warm { Band::Normal } else { situation.band };
        let (_, per) = rule.limit.pace();
        let hold = FineSpan::of_units(rule.hold_max.as_nanos(), (per, per));
        let ((backoff, backoff_max), levels, release) = self.escalation();
        let multiplier = rule.escalation.map_or(0, |escalation| escalation.multiplier(band).thousandths());
        let enforce = u8::from(rule.mode == Mode::Enforce);
        let first =
            [toll.count.min(COUNT_MAX), hold.us, hold.rest, micros(backoff), micros(backoff_max), micros(release)];
        self.bytes([operation as u8, enforce, u8::from(warm), levels], first, self.numbers(toll, work), multiplier)
    }

    /// The parameters of the escalation (backoff and its maximum, number of levels, release time); all zero without
    /// one.
    fn escalation(&self) -> ((Span, Span), u8, Span) {
        self.rule.escalation.map(|escalation| escalation.parameters()).unwrap_or_default()
    }

    /// Encodes a claim in the order in which the script unpacks it. `head` is the operation, whether the rule is
    /// enforced, whether it is in its warm-up, and the number of levels of its escalation.
    fn bytes(&self, head: [u8; 4], first: [u64; 6], second: [u64; 6], multiplier: u32) -> ClaimBytes {
        let mut claim = [0; CLAIM_LENGTH];
        claim[0] = kind(&self.rule.limit);
        claim[1..5].copy_from_slice(&head);
        let numbers = first.into_iter().chain(second).chain([u64::from(multiplier)]);
        for (number, bytes) in numbers.zip(claim[5..].chunks_exact_mut(8)) {
            bytes.copy_from_slice(&(number as f64).to_le_bytes());
        }
        claim
    }

    /// The numbers `a` to `f` of the script, whose meaning depends on the kind of limit.
    fn numbers(&self, toll: Toll, work: Work) -> [u64; 6] {
        let pace = self.rule.limit.pace();
        match &self.rule.limit {
            Limit::Rate(rate) => {
                let burst = rate.parameters().2;
                let depth = FineSpan::of_units(burst, pace);
                let span = FineSpan::of_units(toll.count, pace);
                [pace.1, depth.us, depth.rest, span.us, span.rest, burst.min(COUNT_MAX - 1)]
            }
            Limit::Budget(budget) => {
                let depth = FineSpan::of_units(budget.parameters().1.as_nanos(), pace);
                let span = FineSpan::of_units(toll.cpu.as_nanos(), pace);
                [pace.1, depth.us, depth.rest, span.us, span.rest, 0]
            }
            Limit::Bucket(bucket) => {
                let (size, drip, every) = bucket.parameters();
                [u64::from(size), u64::from(drip), micros(every), 0, 0, 0]
            }
            Limit::Window(window) => {
                let (max, per, ceiling) = window.parameters();
                [u64::from(max), ceiling.map_or(0, u64::from), micros(per), 0, 0, 0]
            }
            Limit::InFlight(in_flight) => [u64::from(in_flight.max()), work.0, micros(WORK_LIFE), 0, 0, 0],
        }
    }

    /// The parameters that determine the meaning of a state (class, limit and escalation), for [`fingerprint`].
    fn parameters(&self) -> Vec<u8> {
        let calm = Situation { now: Moment::MAX, started: Moment::ZERO, band: Band::Normal };
        let plain = Rule { hold_max: Span::ZERO, mode: Mode::Enforce, warmup: None, ..self.rule.clone() };
        let plain = Self { rule: plain, slot_prefix: Vec::new() };
        // The multiplier of a band changes the length of a block, and not its meaning.
        let mut parameters = plain.claim(Operation::Decide, Toll::default(), Work(0), &calm)[..MULTIPLIER_AT].to_vec();
        parameters.extend_from_slice(self.rule.class.to_string().as_bytes());
        parameters
    }
}

/// The position of the multiplier, the last number of a claim, after five bytes and twelve numbers.
const MULTIPLIER_AT: usize = 5 + 12 * 8;
/// The length of a claim in bytes.
const CLAIM_LENGTH: usize = MULTIPLIER_AT + 8;
/// A claim in the script's format.
pub(super) type ClaimBytes = [u8; CLAIM_LENGTH];
/// The maximum count of a claim, which is more than any limit.
const COUNT_MAX: u64 = 1 << 52;

/// The script's letter for the kind of limit.
pub(super) const fn kind(limit: &Limit) -> u8 {
    match limit {
        Limit::Rate(_) => b'r',
        Limit::Budget(_) => b'c',
        Limit::Bucket(_) => b'b',
        Limit::Window(_) => b'w',
        Limit::InFlight(_) => b'f',
    }
}

const fn micros(span: Span) -> u64 {
    span.as_nanos() / NANOS_PER_MICRO
}

/// A hash of `bytes` (FNV-1a, folded to 32 bits). It must be the same in every process and version.
fn fingerprint(bytes: &[u8]) -> u32 {
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    (hash ^ (hash >> 32)) as u32
}

/// Checks that the script can represent the rule exactly.
fn shareable(rule: &Rule) -> Result<(), Unshareable> {
    let window = limit_status::of(&rule.name, &rule.limit, LimitInfo::default()).window;
    if micros(window.unwrap_or_default()) >= CENTURY_US {
        return Err(Unshareable::TooLong);
    }
    match &rule.limit {
        Limit::Rate(_) | Limit::Budget(_) => {}
        Limit::Bucket(bucket) => whole(bucket.parameters().2)?,
        Limit::Window(window) => {
            let (max, per, ceiling) = window.parameters();
            whole(per)?;
            if ceiling.unwrap_or(max) > LOG_MAX {
                return Err(Unshareable::LogTooLong);
            }
        }
        Limit::InFlight(in_flight) if in_flight.max() > LOG_MAX => return Err(Unshareable::LogTooLong),
        Limit::InFlight(_) => {}
    }
    if let Some(escalation) = &rule.escalation {
        let ((_, backoff_max), levels, release) = escalation.parameters();
        for span in [backoff_max, release, release.times(u64::from(levels))] {
            whole(span)?;
        }
        for band in [Band::Normal, Band::Elevated, Band::Critical] {
            whole(escalation.block(1, band, 0))?;
        }
    }
    Ok(())
}

/// Checks that a time is a whole number of microseconds and shorter than a century.
fn whole(span: Span) -> Result<(), Unshareable> {
    if micros(span) >= CENTURY_US {
        Err(Unshareable::TooLong)
    } else if !span.as_nanos().is_multiple_of(NANOS_PER_MICRO) {
        Err(Unshareable::TooFine)
    } else {
        Ok(())
    }
}
