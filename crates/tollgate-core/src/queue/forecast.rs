//! Predicts what the queue would do with a request, without admitting it.

use super::client::Client;
use super::{Queue, RefusedBy, Request, RouteKey, Slot, Standing};
use crate::time::Moment;

/// The prediction for a request that arrived now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Where it would stand.
    pub standing: Standing,
    /// The predicted outcome.
    pub fate: Fate,
}

/// The outcome for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It would go at once.
    Go,
    /// It would wait.
    Wait,
    /// It would be refused.
    Refuse(RefusedBy),
}

impl Queue {
    /// Predicts the fate of a request of this client and weight. Without a route it has the mean cost of all requests.
    pub fn forecast(&mut self, client: Client, weight_milli: u32, route: Option<RouteKey>, now: Moment) -> Forecast {
        self.advance(now);
        let any = RouteKey { route: u64::MAX, parent: u64::MAX };
        let request = Request { client, route: route.unwrap_or(any), weight_milli, bytes: 0 };
        let slot = self.slot_for(request, now);
        // A request of no known route is like most others: it does not go first to find out what its route costs.
        let slot = Slot { is_unseen: slot.is_unseen && route.is_some(), ..slot };
        let standing = self.standing(&slot);
        let has_room = self.waiting < self.settings.total && self.waiting_bytes < self.settings.memory;
        let fate = if self.goes_at_once(&slot, now) {
            Fate::Go
        } else if self.waits_too_long(&slot, standing) {
            Fate::Refuse(RefusedBy::WaitTooLong)
        } else if has_room || self.last_ahead_of(&client).is_some() {
            Fate::Wait
        } else {
            Fate::Refuse(RefusedBy::Full)
        };
        Forecast { standing, fate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Arrival, Settings};

    #[test]
    fn a_forecast_comes_true_and_changes_nothing() {
        let at = |millis| Moment::from_millis(millis);
        let client = |address| Client { block: address, network: 1000 + address, address: 2000 + address, tenant: 0 };
        let route = RouteKey { route: 1, parent: 2 };
        let mut queue = Queue::new(Settings { in_flight: Some(1), total: 1, ..Settings::default() }, at(0));
        for (address, fate) in [(1, Fate::Go), (2, Fate::Wait), (3, Fate::Refuse(RefusedBy::Full))] {
            let forecast = queue.forecast(client(address), 1000, Some(route), at(1));
            assert_eq!((forecast, forecast.fate), (queue.forecast(client(address), 1000, Some(route), at(1)), fate));
            let request = Request { client: client(address), route, weight_milli: 1000, bytes: 0 };
            let (standing, came) = match queue.arrive(request, at(1)) {
                Arrival::Go(_) => (forecast.standing, Fate::Go),
                Arrival::Wait(_, standing) => (standing, Fate::Wait),
                Arrival::Refuse(refusal) => (refusal.standing, Fate::Refuse(refusal.reason)),
            };
            assert_eq!((standing, came), (forecast.standing, fate));
        }
    }
}
