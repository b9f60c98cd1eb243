use super::*;

const SHOP: &str = "
domain: shop
descriptors:
  - key: client
    rate_limit: {unit: minute, requests_per_unit: 10, name: base}
    descriptors:
      - key: path
        value: /login
        rate_limit: {unit: Hour, requests_per_unit: 3, replaces: [{name: base}]}
      - key: path
        rate_limit: {unlimited: true}
  - key: client
    value: 10.*
    share_threshold: true
    rate_limit: {unit: second, requests_per_unit: 5}
  - key: client
    value: '*.example'
    shadow_mode: true
    rate_limit: {unit: day, requests_per_unit: 7}
  - key: client
    value: 10.0.0.1
    quota_mode: yes
    rate_limit: {unit: week, requests_per_unit: 0}
  - key: empty
";

fn found<'t>(tree: &'t LimitTree, entries: &[(&str, &str)]) -> Option<&'t LimitLeaf> {
    tree.find(entries.iter().copied(), &mut String::new()).map(|place| &tree.leaves()[place])
}

fn path<'t>(tree: &'t LimitTree, entries: &[(&str, &str)]) -> Option<&'t str> {
    found(tree, entries).map(|leaf| leaf.path.as_str())
}

fn errors(text: &str) -> Vec<String> {
    let errors = parse(text).unwrap_err();
    errors.into_iter().map(|error| format!("{}:{}: {}", error.line, error.column, error.message)).collect()
}

#[test]
fn a_file_is_read_with_all_of_its_limits() {
    let file = parse(SHOP).unwrap();
    assert_eq!((file.domain.as_str(), file.domain_line), ("shop", 2));
    let tree = LimitTree::new(&file.descriptors);
    let limits: Vec<_> = tree.leaves().iter().map(|leaf| (leaf.path.as_str(), leaf.limit.allowance)).collect();
    assert_eq!(
        limits,
        [
            ("client", Allowance::PerUnit(10, LimitUnit::Minute)),
            ("client.path_/login", Allowance::PerUnit(3, LimitUnit::Hour)),
            ("client.path", Allowance::Unlimited),
            ("client_10.*", Allowance::PerUnit(5, LimitUnit::Second)),
            ("client_*.example", Allowance::PerUnit(7, LimitUnit::Day)),
            ("client_10.0.0.1", Allowance::PerUnit(0, LimitUnit::Week)),
        ]
    );
    assert_eq!(tree.leaves()[1].limit.replaces, ["base"]);
    assert!(tree.leaves()[4].is_shadow && tree.leaves()[5].is_quota);
}

#[test]
fn an_exact_value_comes_before_a_wildcard_and_a_wildcard_before_any_value() {
    let tree = LimitTree::new(&parse(SHOP).unwrap().descriptors);
    assert_eq!(path(&tree, &[("client", "10.0.0.1")]), Some("client_10.0.0.1"));
    assert_eq!(path(&tree, &[("client", "10.0.0.2")]), Some("client_10.*"));
    // The first wildcard of the file counts.
    assert_eq!(path(&tree, &[("client", "10.example")]), Some("client_10.*"));
    assert_eq!(path(&tree, &[("client", "a.example")]), Some("client_*.example"));
    assert_eq!(path(&tree, &[("client", "192.0.2.1")]), Some("client"));
    assert_eq!(path(&tree, &[("client", "")]), Some("client"));
    assert_eq!(path(&tree, &[("Client", "192.0.2.1")]), None);
}

#[test]
fn a_limit_applies_only_to_descriptors_of_its_depth() {
    let tree = LimitTree::new(&parse(SHOP).unwrap().descriptors);
    assert_eq!(path(&tree, &[("client", "a"), ("path", "/login")]), Some("client.path_/login"));
    assert_eq!(path(&tree, &[("client", "a"), ("path", "/")]), Some("client.path"));
    assert_eq!(path(&tree, &[("client", "a"), ("path", "/"), ("more", "x")]), None);
    assert_eq!(path(&tree, &[("path", "/login")]), None);
    // The more specific descriptor has no children.
    assert_eq!(path(&tree, &[("client", "10.0.0.1"), ("path", "/")]), None);
    assert_eq!(path(&tree, &[("empty", "x")]), None);
    assert_eq!(path(&tree, &[]), None);
}

#[test]
fn values_have_their_own_counters_unless_they_share_a_threshold() {
    let tree = LimitTree::new(&parse(SHOP).unwrap().descriptors);
    let varies = |entries: &[(&str, &str)]| -> Vec<bool> {
        found(&tree, entries).unwrap().entries.iter().map(|entry| entry.varies).collect()
    };
    assert_eq!(varies(&[("client", "10.0.0.2")]), [false]);
    assert_eq!(varies(&[("client", "a.example")]), [true]);
    assert_eq!(varies(&[("client", "x"), ("path", "/login")]), [true, false]);
    assert_eq!(varies(&[("client", "10.0.0.1")]), [false]);
}

#[test]
fn stars_match_any_text_in_any_number() {
    let matches = |pattern: &str, text: &str| {
        let parts: Vec<String> = pattern.split('*').map(str::to_owned).collect();
        lookup::matches(&parts, text)
    };
    for (pattern, text, is_match) in [
        ("a*", "a", true),
        ("a*", "b", false),
        ("*a", "ba", true),
        ("a*a", "a", false),
        ("a*a", "aa", true),
        ("a*b*c", "a-b-c", true),
        ("a*b*c", "a-c-b", false),
        ("a**c", "abc", true),
        ("*", "", true),
        ("a*é*c", "aéc", true),
    ] {
        assert_eq!(matches(pattern, text), is_match, "{pattern} {text}");
    }
}

#[test]
fn all_errors_are_reported_with_their_positions() {
    let text = "domain: ''
descriptors:
  - key: a
    rate_limit: {unit: fortnight, requests_per_unit: many}
    limit: 1
  - value: b
  - key: c
    share_threshold: true
  - key: d
    rate_limit: {unit: day, unlimited: true}
  - key: e
    rate_limit: {unit: day, requests_per_unit: 1, name: n, replaces: [{name: n}, {}]}
    shadow_mode: maybe
  - key: a
  - just text
";
    let errors = errors(text);
    let lines: Vec<&str> = errors.iter().map(|error| error.split(':').next().unwrap()).collect();
    assert_eq!(lines, ["1", "5", "4", "4", "6", "7", "10", "13", "12", "12", "14", "15"], "{errors:#?}");
    assert!(errors[1].contains("`limit` is no key of a descriptor"), "{errors:#?}");
}

#[test]
fn what_is_not_yaml_or_not_one_document_is_an_error() {
    for text in ["", "---\n", "a: [", "\t- x", "domain: a\n---\ndomain: b\n", "- a\n", "domain: [x]\n", "&a [*a]\n"] {
        assert!(parse(text).is_err(), "{text:?}");
    }
    assert!(errors("domain: a\ndomain: b\n")[0].starts_with("2:1: `domain` is there twice"));
}

#[test]
fn nesting_and_aliases_are_bounded() {
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    assert!(errors(&deep(100))[0].contains("deeper than 64 levels"));
    assert!(!errors(&deep(100_000)).is_empty());
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..30 {
        let before = level - 1;
        bomb += &format!("a{level}: &a{level} [{}]\n", vec![format!("*a{before}"); 10].join(", "));
    }
    assert!(errors(&bomb)[0].contains("more than 200000 values"));
}

#[test]
fn an_alias_stands_for_its_anchor() {
    let file = parse(
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: &l {unit: day, requests_per_unit: 4}\n- key: b\n  rate_limit: *l\n",
    );
    let descriptors = file.unwrap().descriptors;
    assert_eq!(descriptors[0].limit, descriptors[1].limit);
}

#[test]
fn keys_without_effect_are_noted() {
    let file = parse("domain: d\ndescriptors:\n- key: a\n  detailed_metric: true\n  metadata: {x: [1, {y: z}]}\n");
    let notes = file.unwrap().notes;
    let lines: Vec<usize> = notes.iter().map(|note| note.line).collect();
    assert_eq!(lines, [4, 5], "{notes:?}");
}

#[test]
fn paths_are_unique() {
    let text = "domain: d
descriptors:
- key: a
  descriptors: [{key: b.c, rate_limit: {unit: day}}]
- key: a.b
  descriptors: [{key: c, rate_limit: {unit: day}}]
";
    let tree = LimitTree::new(&parse(text).unwrap().descriptors);
    assert_eq!((tree.leaves()[0].path.as_str(), tree.leaves()[1].path.as_str()), ("a.b.c", "a.b.c~2"));
}
