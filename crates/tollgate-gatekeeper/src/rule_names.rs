//! Finds rules by name with a binary search, for callers of doors that name the rule that is to decide: a limiter can
//! have thousands of rules.

/// The indices of rules, sorted by name. Several rules can have one name.
#[derive(Clone, Debug)]
pub(crate) struct RuleNames(Box<[(Box<str>, usize)]>);

impl RuleNames {
    /// The index of rules with these names, in their order.
    pub(crate) fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut sorted: Vec<(Box<str>, usize)> =
            names.into_iter().enumerate().map(|(place, name)| (name.into(), place)).collect();
        sorted.sort_unstable();
        Self(sorted.into())
    }

    /// The indices of the rules with this name, in their order.
    pub(crate) fn places(&self, name: &str) -> impl Iterator<Item = usize> {
        let start = self.0.partition_point(|(known, _)| **known < *name);
        self.0[start..].iter().take_while(move |(known, _)| **known == *name).map(|(_, place)| *place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rules_with_a_name_are_found_in_their_order() {
        let names = RuleNames::new(["b", "a", "b", "ab", "c"]);
        let places = |name: &str| names.places(name).collect::<Vec<_>>();
        assert_eq!((places("b"), places("a"), places("c")), (vec![0, 2], vec![1], vec![4]));
        assert_eq!((places(""), places("aa"), places("d")), (vec![], vec![], vec![]));
    }
}
