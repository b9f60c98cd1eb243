//! The table that `--once` prints: Tempomat's, with more columns before the title.

use unicode_width::UnicodeWidthStr;

use super::caller::Caller;

const HEADS: [&str; 8] = ["Wait[s]", "Cpu[s]", "Req/s", "Last[s]", "Share[%]", "Held", "Refused", "Title"];

/// The table, as text.
pub(super) fn print(class: &str, callers: &[Caller]) -> String {
    let rows: Vec<[String; HEADS.len()]> = callers.iter().map(cells).collect();
    let widest = |column: usize| {
        let cells = rows.iter().map(|row| row[column].width());
        cells.chain([HEADS[column].width()]).max().unwrap_or(0)
    };
    let widths: [usize; HEADS.len()] = std::array::from_fn(widest);
    let rule: String = widths.iter().map(|width| format!("+{}", "-".repeat(width + 2))).collect::<String>() + "+\n";
    let line = |cells: Vec<String>| cells.iter().map(|cell| format!("| {cell} ")).collect::<String>() + "|\n";
    let mut text = format!("Bucket: {class}\n{rule}");
    text += &line(HEADS.iter().zip(widths).map(|(head, width)| format!("{head:^width$}")).collect());
    text += &rule;
    for row in rows {
        let last = HEADS.len() - 1;
        let aligned = row.iter().enumerate().map(|(column, cell)| {
            let space = " ".repeat(widths[column] - cell.width());
            if column == last { format!("{cell}{space}") } else { format!("{space}{cell}") }
        });
        text += &line(aligned.collect());
    }
    text + &rule
}

fn cells(caller: &Caller) -> [String; HEADS.len()] {
    [
        format!("{:.2}", caller.wait_secs),
        format!("{:.2}", caller.cpu),
        format!("{:.2}", caller.requests_per_sec),
        format!("{:.0}", caller.last_secs),
        format!("{:.1}", caller.share * 100.0),
        caller.held.to_string(),
        caller.refused.to_string(),
        caller.title.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_on_the_right_titles_on_the_left_and_heads_in_the_middle() {
        let caller = |title: &str, cpu| Caller {
            title: title.to_owned(),
            cpu,
            wait_secs: 10.514,
            requests_per_sec: 14.89,
            last_secs: 67.0,
            share: 0.5,
            ..Caller::default()
        };
        let text = print("ip/32", &[caller("203.0.113.7/32", 15.62), caller("198.51.100.20/32", 0.94)]);
        let expect = "\
Bucket: ip/32
+---------+--------+-------+---------+----------+------+---------+------------------+
| Wait[s] | Cpu[s] | Req/s | Last[s] | Share[%] | Held | Refused |      Title       |
+---------+--------+-------+---------+----------+------+---------+------------------+
|   10.51 |  15.62 | 14.89 |      67 |     50.0 |    0 |       0 | 203.0.113.7/32   |
|   10.51 |   0.94 | 14.89 |      67 |     50.0 |    0 |       0 | 198.51.100.20/32 |
+---------+--------+-------+---------+----------+------+---------+------------------+
";
        assert_eq!(text, expect);
    }

    #[test]
    fn nobody_is_an_empty_table() {
        assert_eq!(print("ip/24", &[]).lines().count(), 5);
    }
}
