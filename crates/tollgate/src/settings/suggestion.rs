//! "Did you mean" hints: the valid word that is nearest to a misspelt one.

/// Maximum length of a word, in bytes, that gets a hint. The time of a comparison grows with the product of both
/// lengths.
const LENGTH_MAX: usize = 40;

/// The candidate nearest to `word`. None if the nearest one differs in more than one character and in more than a third
/// of the longer word.
pub(super) fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    if word.len() > LENGTH_MAX {
        return None;
    }
    // Case, and `_` for `-`, are the most frequent mistakes.
    let plain = |word: &str| word.to_ascii_lowercase().replace('_', "-");
    let word = plain(word);
    let distance = |candidate: &str| strsim::osa_distance(&word, &plain(candidate));
    candidates
        .into_iter()
        .map(|candidate| (distance(candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len().max(word.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The end of an error message: `, did you mean ...?`, or nothing if no candidate is near.
pub(super) fn did_you_mean<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> String {
    nearest(word, candidates).map(|candidate| format!(", did you mean `{candidate}`?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_mistake_finds_its_word_and_nonsense_finds_none() {
        let keys = ["burst", "rate", "trusted_proxies", "ip/32", "user-agent"];
        let check = |word, expected| assert_eq!(nearest(word, keys), expected, "{word}");
        check("brust", Some("burst"));
        check("burts", Some("burst"));
        check("trusted-proxies", Some("trusted_proxies"));
        check("trusted_proxy", Some("trusted_proxies"));
        check("user_agent", Some("user-agent"));
        check("Rate", Some("rate"));
        check("colour", None);
        check("", None);
        check(&"burst".repeat(1000), None);
    }
}
