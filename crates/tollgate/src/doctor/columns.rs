//! The columns of the live view. Those that do not fit the width of the terminal beside the key are left out.

use super::key_row::KeyRow;

/// Least width of the key, in characters.
const KEY_CHARS_MIN: usize = 20;

/// Head of the column that is left out if all its values are 0.
const OBSERVED: &str = "observed";

/// A column of the table.
pub(super) struct Column {
    head: &'static str,
    /// Width in characters.
    width: usize,
    /// The column with the highest rank is left out first.
    rank: u8,
    /// Explanation for the help screen.
    meaning: &'static str,
    /// The cell of a row.
    text: fn(&KeyRow) -> String,
}

const COLUMNS: [Column; 9] = [
    Column {
        head: "wait[s]",
        width: 8,
        rank: 5,
        meaning: "average wait of its latest requests at the gate, in seconds",
        text: |row| format!("{:.2}", row.wait_secs),
    },
    Column {
        head: "cpu[s]",
        width: 7,
        rank: 6,
        meaning: "CPU-seconds of the backend used per second, over the last 10 s",
        text: |row| format!("{:.2}", row.cpu),
    },
    Column {
        head: "share",
        width: 7,
        rank: 1,
        meaning: "the same as a part of all backend cores",
        text: |row| format!("{:.1}%", row.share * 100.0),
    },
    Column {
        head: "req/s",
        width: 8,
        rank: 2,
        meaning: "requests per second over the last 10 s",
        text: |row| format!("{:.1}", row.requests_per_sec),
    },
    Column {
        head: "held",
        width: 7,
        rank: 7,
        meaning: "requests held by the queue or a rule, since first seen; in observe mode, those that would have been",
        text: |row| row.held.to_string(),
    },
    Column {
        head: "refused",
        width: 8,
        rank: 3,
        meaning: "the same for refused requests; estimated while a client is refused over a thousand times per second",
        text: |row| row.refused.to_string(),
    },
    Column {
        head: OBSERVED,
        width: 8,
        rank: 4,
        meaning: "would have been held or refused, by a rule or gate in observe mode",
        text: |row| row.observed.to_string(),
    },
    Column {
        head: "last[s]",
        width: 7,
        rank: 8,
        meaning: "seconds since the last request",
        text: |row| format!("{:.0}", row.last_secs),
    },
    Column {
        head: "left",
        width: 6,
        rank: 9,
        meaning: "requests or milliseconds left in the strictest rule",
        text: |row| row.left.map_or_else(|| "-".to_owned(), |left| left.to_string()),
    },
];

/// The columns that fit beside the keys of these rows on a terminal of this width.
pub(super) fn fitting(width: usize, rows: &[&KeyRow]) -> Vec<&'static Column> {
    let mut room = width.saturating_sub(KEY_CHARS_MIN);
    let has_observed = rows.iter().any(|row| row.observed > 0);
    let is_wanted = |column: &&Column| has_observed || column.head != OBSERVED;
    let mut ranked: Vec<_> = COLUMNS.iter().filter(is_wanted).collect();
    ranked.sort_by_key(|column| column.rank);
    let fit = ranked.iter().take_while(|column| {
        let fits = column.width < room;
        room = room.saturating_sub(column.width + 1);
        fits
    });
    let rank_max = fit.map(|column| column.rank).max().unwrap_or(0);
    COLUMNS.iter().filter(is_wanted).filter(|column| column.rank <= rank_max).collect()
}

/// Header and meaning of each column.
pub(super) fn meanings() -> impl Iterator<Item = (&'static str, &'static str)> {
    COLUMNS.iter().map(|column| (column.head, column.meaning))
}

/// Header line. The class is the head of the keys.
pub(super) fn heads(columns: &[&Column], class: &str) -> String {
    line(columns, |column| column.head.to_owned(), class)
}

/// Line of a key.
pub(super) fn row_line(columns: &[&Column], row: &KeyRow) -> String {
    line(columns, |column| (column.text)(row), &row.title)
}

fn line(columns: &[&Column], text: impl Fn(&Column) -> String, name: &str) -> String {
    let mut line = String::new();
    for column in columns {
        line += &format!("{:>width$} ", text(column), width = column.width);
    }
    line + " " + name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_fits_on_every_terminal_and_all_columns_on_a_wide_one() {
        let row = KeyRow { title: "203.0.113.77/32".to_owned(), ..KeyRow::default() };
        for width in [20, 30, 40, 60, 80, 100, 200] {
            let line: String = row_line(&fitting(width, &[&row]), &row).chars().take(width).collect();
            assert!(line.contains("203.0.113.77/32"), "{width}: {line:?}");
        }
        let shown = |width, observed| {
            let row = KeyRow { observed, ..KeyRow::default() };
            fitting(width, &[&row]).iter().map(|column| column.head).collect::<Vec<_>>()
        };
        assert_eq!(shown(40, 0), ["share", "req/s"]);
        assert_eq!(shown(80, 0), ["wait[s]", "cpu[s]", "share", "req/s", "held", "refused", "last[s]"]);
        assert_eq!(shown(80, 1), ["wait[s]", "cpu[s]", "share", "req/s", "held", "refused", "observed"]);
        assert_eq!((shown(100, 0).len(), shown(100, 1).len()), (COLUMNS.len() - 1, COLUMNS.len()));
    }
}
