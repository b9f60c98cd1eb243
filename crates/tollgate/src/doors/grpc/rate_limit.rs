//! `ShouldRateLimit`, the method of Envoy's rate limit service: decides on one request, which Envoy describes by
//! descriptors. A descriptor is a list of entries, each with a key and a value; each may have a limit.
//!
//! If the domain is in a file in the format of envoyproxy/ratelimit, the limits of the file decide, as they do there.
//! Otherwise the rules of the domain decide, with the entries as attributes. The request is over the limit if a limit
//! is exceeded; of the limits in quota mode, all must be exceeded.
//!
//! Envoy sends two kinds of calls that look the same: questions before a request, and reports of the cost after it. A
//! report must be charged even if it exceeds the limit, or clients could exceed a limit without end. A question must
//! not, because a refusal costs nothing. Questions have one hit, or none if they only check; reports usually have more.
//! So a call with more than one hit that is over the limit takes what is left of the limit, and other calls that are
//! over the limit take nothing.

use std::borrow::Cow;

use tollgate_core::limit::Bucket;
use tollgate_core::time::Span;
use tollgate_wire::ratelimit_config::{Allowance, LimitLeaf, LimitUnit};

use super::descriptor_request::DescriptorRequest;
use super::messages::{
    DescriptorEntry, DescriptorStatus, OK, OVER_LIMIT, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use super::status::{self, Judgement};
use super::unit;
use crate::doors::metrics::Count;
use crate::doors::request::DescribedRequest;
use crate::doors::station::Station;
use crate::gate::{Inquiry, NoRuling, OnHold, Ruling};
use crate::settings::{ServedDomain, is_identified};

/// The maximum number of descriptors in a call.
const DESCRIPTORS_MAX: usize = 100;
/// The maximum number of entries in a descriptor.
const ENTRIES_MAX: usize = 32;
/// The maximum number of hits of one descriptor, which is Envoy's own.
const HITS_MAX: u64 = 1_000_000_000;
/// The class, for the watch, of descriptors that are refused without a rule: by a limit that came with the call, or by
/// a limit of 0.
const CALL_CLASS: &str = "descriptor";

/// Why a call cannot be answered.
pub(in crate::doors) type BadCall = Cow<'static, str>;

/// The limit that decides on a descriptor.
#[derive(Clone, Copy)]
enum LimitSource<'l> {
    /// No limit applies.
    Nothing,
    /// A limit that allows everything.
    Unlimited,
    /// A limit of a file.
    Leaf(&'l LimitLeaf),
    /// The limit that came with the descriptor: this many requests per unit.
    Override(u32, LimitUnit),
    /// The rules of the domain.
    Rules,
}

/// The effect of a descriptor on its limit.
#[derive(Clone, Copy)]
enum Hits {
    /// Charge this many hits; 0 only checks.
    Add(u64),
    /// Return this many hits.
    Return(u64),
}

/// Decides on a call.
pub(in crate::doors) async fn should_rate_limit(
    station: &Station,
    request: &RateLimitRequest,
) -> Result<RateLimitResponse, BadCall> {
    check(request)?;
    let limits = station.limits.served.load_full();
    let call = Call { station, domain: &request.domain, served: limits.find(&request.domain) };
    let mut judgements = Vec::with_capacity(request.descriptors.len());
    for (descriptor, source) in request.descriptors.iter().zip(call.sources(&request.descriptors)?) {
        judgements.push(call.judge(descriptor, source, hits(request, descriptor)).await?);
    }
    let is_over = is_over(&judgements);
    station.count(if is_over { Count::Refused } else { Count::Admitted });
    let response_headers_to_add = status::headers(&judgements, is_over);
    let is_report = request.descriptors.iter().any(|descriptor| matches!(hits(request, descriptor), Hits::Add(2..)));
    let statuses = judgements.into_iter().map(|judgement| close(station, judgement, is_over && !is_report)).collect();
    Ok(RateLimitResponse { overall_code: if is_over { OVER_LIMIT } else { OK }, statuses, response_headers_to_add })
}

/// Rejects a call that is malformed or too large.
fn check(request: &RateLimitRequest) -> Result<(), BadCall> {
    if request.domain.is_empty() {
        return Err("rate limit domain must not be empty".into());
    }
    if request.descriptors.is_empty() {
        return Err("rate limit descriptor list must not be empty".into());
    }
    if request.descriptors.len() > DESCRIPTORS_MAX {
        return Err(format!("more than {DESCRIPTORS_MAX} descriptors").into());
    }
    for descriptor in &request.descriptors {
        if descriptor.entries.is_empty() || descriptor.entries.len() > ENTRIES_MAX {
            return Err(format!("a descriptor has from 1 to {ENTRIES_MAX} entries").into());
        }
        let (Hits::Add(count) | Hits::Return(count)) = hits(request, descriptor);
        if count > HITS_MAX {
            return Err(format!("more than {HITS_MAX} hits").into());
        }
    }
    Ok(())
}

fn hits(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Hits {
    let count = descriptor.hits_addend.unwrap_or(u64::from(request.hits_addend.max(1)));
    if descriptor.is_negative_hits { Hits::Return(count) } else { Hits::Add(count) }
}

/// Whether the whole request is over the limit.
fn is_over(judgements: &[Judgement]) -> bool {
    let mut quotas = judgements.iter().filter(|judgement| judgement.is_quota).peekable();
    let is_quota_used_up = quotas.peek().is_some() && quotas.all(Judgement::is_over);
    is_quota_used_up || judgements.iter().any(|judgement| judgement.is_over() && !judgement.is_quota)
}

/// Settles the charge of a descriptor, or returns it (`is_returned`), because the whole request is refused. Returns the
/// status for the response.
fn close(station: &Station, judgement: Judgement, is_returned: bool) -> DescriptorStatus {
    let Judgement { mut status, ruling, hits, .. } = judgement;
    let Some(ruling) = ruling.filter(|ruling| !ruling.decision.verdict.is_refusal()) else { return status };
    if is_returned {
        // Dropping the ruling returns its charge.
        status.limit_remaining = status.limit_remaining.saturating_add(u32::try_from(hits).unwrap_or(u32::MAX));
    } else {
        // Envoy reports no end of its requests.
        station.decider.settle(ruling.ticket(), None);
    }
    status
}

/// A call for one domain.
struct Call<'a> {
    station: &'a Station,
    /// The name of the domain in the call.
    domain: &'a str,
    /// The limits of the domain, if it is one of a file.
    served: Option<&'a ServedDomain>,
}

impl<'a> Call<'a> {
    /// The limit of each descriptor. A limit that another limit of the call replaces (`replaces` in the file) does not
    /// apply.
    fn sources(&self, descriptors: &[RateLimitDescriptor]) -> Result<Vec<LimitSource<'a>>, BadCall> {
        let mut scratch = String::new();
        let mut sources = Vec::with_capacity(descriptors.len());
        let mut replaced: Vec<&str> = Vec::new();
        for descriptor in descriptors {
            let source = match (&descriptor.limit, self.served) {
                (Some(limit), _) => {
                    let unit = unit::of_number(limit.unit).ok_or("the unit of a limit override is unknown")?;
                    LimitSource::Override(limit.requests_per_unit, unit)
                }
                (None, None) => LimitSource::Rules,
                (None, Some(served)) => {
                    let entries = descriptor.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_str()));
                    let leaf = served.tree.find(entries, &mut scratch).map(|place| &served.tree.leaves()[place]);
                    replaced.extend(leaf.into_iter().flat_map(|leaf| leaf.limit.replaces.iter().map(String::as_str)));
                    match leaf {
                        None => LimitSource::Nothing,
                        Some(leaf) if leaf.limit.allowance == Allowance::Unlimited => LimitSource::Unlimited,
                        Some(leaf) => LimitSource::Leaf(leaf),
                    }
                }
            };
            sources.push(source);
        }
        for source in &mut sources {
            if let LimitSource::Leaf(leaf) = source
                && leaf.limit.name.as_ref().is_some_and(|name| replaced.contains(&name.as_str()))
            {
                *source = LimitSource::Nothing;
            }
        }
        Ok(sources)
    }

    /// Decides on a descriptor by its limit, and charges it.
    async fn judge(
        &self,
        descriptor: &RateLimitDescriptor,
        source: LimitSource<'_>,
        hits: Hits,
    ) -> Result<Judgement, BadCall> {
        match source {
            LimitSource::Nothing => Ok(Judgement::without_limit()),
            LimitSource::Unlimited => Ok(Judgement::unlimited()),
            LimitSource::Override(requests, unit) => Ok(self.by_override(descriptor, requests, unit, hits)),
            LimitSource::Leaf(leaf) => match leaf.limit.allowance {
                Allowance::PerUnit(0, unit) => Ok(self.blocked(descriptor, leaf, unit)),
                _ => self.by_leaf(descriptor, leaf, hits).await,
            },
            LimitSource::Rules => self.by_rules(descriptor, hits).await,
        }
    }

    /// A limit of 0 refuses all.
    fn blocked(&self, descriptor: &RateLimitDescriptor, leaf: &LimitLeaf, unit: LimitUnit) -> Judgement {
        if !leaf.is_shadow {
            self.station.decider.refused_by_call(CALL_CLASS, &key_of(self.domain, descriptor));
        }
        let judgement = Judgement::of_bucket(0, unit, leaf.is_shadow, 0, Span::from_secs(unit.secs()), 0);
        judgement.of_leaf(leaf)
    }

    /// Decides by a limit of a file, which is a rule.
    async fn by_leaf(
        &self,
        descriptor: &RateLimitDescriptor,
        leaf: &LimitLeaf,
        hits: Hits,
    ) -> Result<Judgement, BadCall> {
        let identifier = is_identified(leaf).then(|| identifier(descriptor, leaf));
        let (rule, entries) = (leaf.path.as_str(), descriptor.entries.as_slice());
        let request = DescriptorRequest { rule, entries, identifier: identifier.as_deref() };
        let domain = self.served.map_or(self.domain, |served| served.rules.as_str());
        let judgement = self.by_request(domain, &request, hits).await?;
        Ok(judgement.of_leaf(leaf))
    }

    async fn by_rules(&self, descriptor: &RateLimitDescriptor, hits: Hits) -> Result<Judgement, BadCall> {
        let entries = descriptor.entries.iter();
        let attributes: Vec<_> =
            entries.map(|entry| (entry.key.as_str().into(), entry.value.as_str().into())).collect();
        self.by_request(self.domain, &DescribedRequest::of_descriptor(&attributes), hits).await
    }

    /// Decides by the rules of a domain that apply to `request`.
    async fn by_request(
        &self,
        domain: &str,
        request: &impl tollgate_core::request::Request,
        hits: Hits,
    ) -> Result<Judgement, BadCall> {
        let decider = &self.station.decider;
        let count = match hits {
            Hits::Add(count) => count,
            Hits::Return(count) => {
                match decider.return_hits(domain, request, count) {
                    Ok(true) => {}
                    Ok(false) => return Err("a limit on Redis cannot take hits back".into()),
                    Err(_) => return Ok(self.unknown_domain()),
                }
                0
            }
        };
        let ruling = match self.ask(domain, request, count).await {
            Ok(ruling) => ruling,
            Err(NoRuling::UnknownDomain) => return Ok(self.unknown_domain()),
            Err(_) => return Ok(Judgement::without_limit()),
        };
        if count > 1 && ruling.decision.verdict.is_refusal() {
            self.take_rest(domain, request, count, &ruling).await;
        }
        Ok(Judgement::of_ruling(ruling, count, decider.now(), matches!(hits, Hits::Add(0))))
    }

    async fn ask(
        &self,
        domain: &str,
        request: &impl tollgate_core::request::Request,
        count: u64,
    ) -> Result<Ruling, NoRuling> {
        let inquiry = Inquiry { domain, count, cpu: None, factor: None, has_key: false, on_hold: OnHold::Refuse };
        self.station.decider.decide(inquiry, request).await
    }

    /// Charges what is left of a limit that a report of `count` hits exceeds. `refused` is the decision on the report.
    async fn take_rest(
        &self,
        domain: &str,
        request: &impl tollgate_core::request::Request,
        count: u64,
        refused: &Ruling,
    ) {
        let decider = &self.station.decider;
        if decider.charge_rest(domain, request, count) != Ok(false) {
            return;
        }
        // The limit is on Redis: what was left a moment ago is charged as a request of its own.
        let left = refused.decision.info.map_or(0, |info| info.remaining.min(count));
        if left > 0
            && let Ok(ruling) = self.ask(domain, request, left).await
            && !ruling.decision.verdict.is_refusal()
        {
            decider.settle(ruling.ticket(), None);
        }
    }

    fn unknown_domain(&self) -> Judgement {
        self.station.count(Count::UnknownDomain);
        Judgement::without_limit()
    }

    /// Decides by the limit that came with the descriptor.
    fn by_override(&self, descriptor: &RateLimitDescriptor, requests: u32, unit: LimitUnit, hits: Hits) -> Judgement {
        let (station, now) = (self.station, self.station.decider.now());
        if self.served.is_none() && !station.decider.has_domain(self.domain) {
            return self.unknown_domain();
        }
        let every = Span::from_secs(unit.secs());
        let mut key = key_of(self.domain, descriptor);
        let Ok(bucket) = Bucket::new(requests, requests, every) else {
            station.decider.refused_by_call(CALL_CLASS, &key);
            return Judgement::of_bucket(requests, unit, false, 0, every, 0);
        };
        let name_length = key.len();
        make_unique(&mut key, descriptor, requests, unit);
        let table = &station.limits.overrides;
        let count = match hits {
            Hits::Add(count) => count,
            Hits::Return(count) => {
                table.give_back(&key, bucket, count, now);
                0
            }
        };
        station.decider.count_call();
        let (mut fits, info) = table.decide(&key, bucket, count, now);
        if !fits && count > 1 {
            table.charge_rest(&key, bucket, count, now);
        }
        // A call without hits asks whether anything is left.
        fits &= !(matches!(hits, Hits::Add(0)) && info.remaining == 0);
        if !fits {
            station.decider.refused_by_call(CALL_CLASS, &key[..name_length]);
        }
        let reset = if info.clear.is_zero() { every } else { info.clear };
        let remaining = if fits { info.remaining } else { 0 };
        Judgement::of_bucket(requests, unit, fits, remaining, reset, count)
    }
}

/// The state of the limit of a bucket of the quota service.
pub(super) enum QuotaFigures {
    /// There is no limit, or it is only observed.
    NoLimit,
    /// A limit of 0.
    Blocked,
    /// The limit is used up for this time.
    UsedUp(Span),
    /// A number of requests per window.
    Limit { quota: u64, window: Span },
}

/// Charges `count` requests of a bucket, which Envoy has admitted by its own decision, to the limit of the descriptor
/// with the same entries. Returns the state of that limit.
pub(super) async fn charge_usage(
    station: &Station,
    domain: &str,
    descriptor: &RateLimitDescriptor,
    count: u64,
) -> Result<QuotaFigures, BadCall> {
    let limits = station.limits.served.load_full();
    let call = Call { station, domain, served: limits.find(domain) };
    for entries in orders(&descriptor.entries) {
        let used = &RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
        let Some(source) = call.sources(std::slice::from_ref(used))?.pop() else { break };
        match source {
            LimitSource::Nothing => {}
            LimitSource::Unlimited | LimitSource::Override(..) => return Ok(QuotaFigures::NoLimit),
            LimitSource::Leaf(leaf) if matches!(leaf.limit.allowance, Allowance::PerUnit(0, _)) => {
                return Ok(if leaf.is_shadow { QuotaFigures::NoLimit } else { QuotaFigures::Blocked });
            }
            source @ (LimitSource::Leaf(_) | LimitSource::Rules) => {
                if count > 0 {
                    // Envoy has admitted them, whatever is left of the limit.
                    let judgement = call.judge(used, source, Hits::Add(count.min(HITS_MAX))).await?;
                    close(station, judgement, false);
                }
                let judgement = call.judge(used, source, Hits::Add(0)).await?;
                return Ok(judgement.quota_figures());
            }
        }
    }
    Ok(QuotaFigures::NoLimit)
}

/// The orders of entries in which a limit of a bucket is searched: the entries of a bucket have no order, those of
/// limits in files do. With more than four entries, only the given order is tried.
fn orders(entries: &[DescriptorEntry]) -> Vec<Vec<DescriptorEntry>> {
    const PERMUTED_MAX: usize = 4;
    if entries.len() > PERMUTED_MAX {
        return vec![entries.to_vec()];
    }
    let mut orders = vec![Vec::new()];
    for entry in entries {
        let longer = |order: &Vec<DescriptorEntry>| {
            (0..=order.len())
                .rev()
                .map(|at| {
                    let mut order = order.clone();
                    order.insert(at, entry.clone());
                    order
                })
                .collect::<Vec<_>>()
        };
        orders = orders.iter().flat_map(longer).collect();
    }
    orders
}

/// The key of a descriptor: the domain and all entries.
fn key_of(domain: &str, descriptor: &RateLimitDescriptor) -> Vec<u8> {
    let mut key = domain.as_bytes().to_vec();
    for entry in &descriptor.entries {
        key.push(b'|');
        key.extend_from_slice(entry.key.as_bytes());
        key.push(b'=');
        key.extend_from_slice(entry.value.as_bytes());
    }
    key
}

/// Extends the key of a descriptor by the lengths of its entries, because a value of a client may look like the next
/// entry, and by the parameters of its limit: the state of a bucket has a meaning only together with them.
fn make_unique(key: &mut Vec<u8>, descriptor: &RateLimitDescriptor, requests: u32, unit: LimitUnit) {
    for entry in &descriptor.entries {
        key.extend_from_slice(&(entry.key.len() as u64).to_le_bytes());
        key.extend_from_slice(&(entry.value.len() as u64).to_le_bytes());
    }
    key.extend_from_slice(&requests.to_le_bytes());
    key.extend_from_slice(&unit.secs().to_le_bytes());
}

/// The key of a descriptor for a rule of the class `identifier`: the values of the entries whose values have counters
/// of their own. Each is preceded by its length, so that different lists of values are different texts.
fn identifier(descriptor: &RateLimitDescriptor, leaf: &LimitLeaf) -> String {
    let varying = descriptor.entries.iter().zip(&leaf.entries).filter(|(_, known)| known.varies);
    let values: Vec<&str> = varying.map(|(entry, _)| entry.value.as_str()).collect();
    match values.as_slice() {
        [] => leaf.path.clone(),
        [value] => (*value).to_owned(),
        values => values.iter().map(|value| format!("{}:{value}", value.len())).collect::<Vec<_>>().join("|"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_looks_like_an_entry_has_another_key() {
        let key = |entries: &[(&str, &str)]| {
            let entry = |(key, value): &(&str, &str)| DescriptorEntry { key: (*key).into(), value: (*value).into() };
            let entries = entries.iter().map(entry).collect();
            let descriptor = RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
            let mut key = key_of("shop", &descriptor);
            make_unique(&mut key, &descriptor, 10, LimitUnit::Minute);
            key
        };
        let honest = key(&[("path", "/"), ("user", "ann")]);
        assert_ne!(key(&[("path", "/|user=ann")]), honest);
        assert_ne!(key(&[("path|user", "ann")]), key(&[("path", "user=ann")]));
        assert_eq!(key(&[("path", "/"), ("user", "ann")]), honest);
    }
}
