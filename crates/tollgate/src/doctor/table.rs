//! The table of `tollgate doctor --once`. It has the columns of Tempomat, an earlier limiter, and further ones.

use unicode_width::UnicodeWidthStr;

use super::key_row::KeyRow;

/// A column: its head, and the function that returns the cell of a row.
type Column = (&'static str, fn(&KeyRow) -> String);

/// The columns, from left to right. [`KeyRow`] explains their values; `Cpu[s]` is in CPU-seconds per second. `Wait[s]`,
/// `Cpu[s]`, `Req/s`, `Last[s]` and `Title` have the names that Tempomat gives them.
const COLUMNS: [Column; 9] = [
    ("Wait[s]", |row| format!("{:.2}", row.wait_secs)),
    ("Cpu[s]", |row| format!("{:.2}", row.cpu)),
    ("Req/s", |row| format!("{:.2}", row.requests_per_sec)),
    ("Last[s]", |row| format!("{:.0}", row.last_secs)),
    ("Share[%]", |row| format!("{:.1}", row.share * 100.0)),
    ("Held", |row| row.held.to_string()),
    ("Refused", |row| row.refused.to_string()),
    (OBSERVED, |row| row.observed.to_string()),
    ("Title", |row| row.title.clone()),
];
/// Head of the column for the effect of observe mode ([`KeyRow::observed`]). It is left out if all its values are 0.
const OBSERVED: &str = "Observed";

/// Formats the table.
pub(super) fn text(class: &str, rows: &[KeyRow]) -> String {
    let has_observed = rows.iter().any(|row| row.observed > 0);
    let columns = || COLUMNS.iter().filter(|(head, _)| has_observed || *head != OBSERVED);
    let heads: Vec<&str> = columns().map(|(head, _)| *head).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| columns().map(|(_, text)| text(row)).collect()).collect();
    let widest = |(column, head): (usize, &&str)| {
        let cells = rows.iter().map(|row| row[column].width());
        cells.chain([head.width()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = heads.iter().enumerate().map(widest).collect();
    let rule: String = widths.iter().map(|width| format!("+{}", "-".repeat(width + 2))).collect::<String>() + "+\n";
    let line = |cells: Vec<String>| cells.iter().map(|cell| format!("| {cell} ")).collect::<String>() + "|\n";
    let mut text = format!("Class: {class}\n{rule}");
    text += &line(heads.iter().zip(&widths).map(|(head, &width)| format!("{head:^width$}")).collect());
    text += &rule;
    for row in rows {
        let last = heads.len() - 1;
        let aligned = row.iter().enumerate().map(|(column, cell)| {
            let space = " ".repeat(widths[column] - cell.width());
            if column == last { format!("{cell}{space}") } else { format!("{space}{cell}") }
        });
        text += &line(aligned.collect());
    }
    text + &rule
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_right_aligned_titles_left_aligned_and_headers_centred() {
        let row = |title: &str, cpu| KeyRow {
            title: title.to_owned(),
            cpu,
            wait_secs: 10.514,
            requests_per_sec: 14.89,
            last_secs: 67.0,
            share: 0.5,
            ..KeyRow::default()
        };
        let table = text("ip/32", &[row("203.0.113.7/32", 15.62), row("198.51.100.20/32", 0.94)]);
        let expect = "\
Class: ip/32
+---------+--------+-------+---------+----------+------+---------+------------------+
| Wait[s] | Cpu[s] | Req/s | Last[s] | Share[%] | Held | Refused |      Title       |
+---------+--------+-------+---------+----------+------+---------+------------------+
|   10.51 |  15.62 | 14.89 |      67 |     50.0 |    0 |       0 | 203.0.113.7/32   |
|   10.51 |   0.94 | 14.89 |      67 |     50.0 |    0 |       0 | 198.51.100.20/32 |
+---------+--------+-------+---------+----------+------+---------+------------------+
";
        assert_eq!(table, expect);
    }

    #[test]
    fn what_rules_in_observe_mode_would_have_done_has_a_column_if_there_is_any() {
        let row = |observed| KeyRow { title: "203.0.113.7/32".to_owned(), observed, ..KeyRow::default() };
        let table = text("ip/32", &[row(5), row(0)]);
        assert!(table.contains("| Refused | Observed |     Title      |\n"), "{table}");
        assert!(table.contains("|       0 |        5 | 203.0.113.7/32 |\n"), "{table}");
        assert!(!text("ip/32", &[row(0)]).contains("Observed"));
    }

    #[test]
    fn a_long_key_is_shortened_in_the_table_only() {
        let key = "k".repeat(200_000);
        let rows = KeyRow::all(&serde_json::json!([{ "key": key }]), &serde_json::Value::Null);
        assert_eq!(rows[0].key, key, "requests for the key need all of it");
        let table = text("ip/32", &rows);
        assert!(table.contains("kkk... |") && table.len() < 10_000, "{} bytes", table.len());
    }

    #[test]
    fn a_table_without_keys_has_only_headers() {
        assert_eq!(text("ip/24", &[]).lines().count(), 5);
    }
}
