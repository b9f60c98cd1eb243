//! Which figures of a caller are shown where there is not room for all: the name of who it is comes first.

use super::caller::Caller;

/// How much room a name has at least.
const NAME_MIN: usize = 20;

/// One figure of every caller.
pub(super) struct Column {
    head: &'static str,
    width: usize,
    /// Which goes first when there is little room; the last one is the first to go.
    rank: u8,
    meaning: &'static str,
    text: fn(&Caller) -> String,
}

const COLUMNS: [Column; 8] = [
    Column {
        head: "wait[s]",
        width: 8,
        rank: 4,
        meaning: "average wait of its requests at the gate over the last 10 s, in seconds",
        text: |caller| format!("{:.2}", caller.wait_secs),
    },
    Column {
        head: "cpu[s]",
        width: 7,
        rank: 5,
        meaning: "CPU-seconds of the backend that it uses per second, over the last 10 s",
        text: |caller| format!("{:.2}", caller.cpu),
    },
    Column {
        head: "share",
        width: 7,
        rank: 1,
        meaning: "the same as a part of all cores of the backends",
        text: |caller| format!("{:.1}%", caller.share * 100.0),
    },
    Column {
        head: "req/s",
        width: 8,
        rank: 2,
        meaning: "requests per second over the last 10 s",
        text: |caller| format!("{:.1}", caller.requests_per_sec),
    },
    Column {
        head: "held",
        width: 7,
        rank: 6,
        meaning: "requests that waited for the queue or for a rule, since it was first seen",
        text: |caller| caller.held.to_string(),
    },
    Column {
        head: "refused",
        width: 8,
        rank: 3,
        meaning: "requests that were refused, since it was first seen",
        text: |caller| caller.refused.to_string(),
    },
    Column {
        head: "last[s]",
        width: 7,
        rank: 7,
        meaning: "seconds since its last request",
        text: |caller| format!("{:.0}", caller.last_secs),
    },
    Column {
        head: "left",
        width: 6,
        rank: 8,
        meaning: "requests or milliseconds that its tightest rule has left",
        text: |caller| caller.left.map_or_else(|| "-".to_owned(), |left| left.to_string()),
    },
];

/// The figures for which there is room beside a name.
pub(super) fn fitting(width: usize) -> Vec<&'static Column> {
    let mut room = width.saturating_sub(NAME_MIN);
    let mut ranked: Vec<_> = COLUMNS.iter().collect();
    ranked.sort_by_key(|column| column.rank);
    let fit = ranked.iter().take_while(|column| {
        let fits = column.width < room;
        room = room.saturating_sub(column.width + 1);
        fits
    });
    let last = fit.map(|column| column.rank).max().unwrap_or(0);
    COLUMNS.iter().filter(|column| column.rank <= last).collect()
}

/// The head and the meaning of every column.
pub(super) fn meanings() -> impl Iterator<Item = (&'static str, &'static str)> {
    COLUMNS.iter().map(|column| (column.head, column.meaning))
}

/// What is written above them.
pub(super) fn heads(columns: &[&Column], class: &str) -> String {
    line(columns, |column| column.head.to_owned(), class)
}

/// A caller's figures, and who it is.
pub(super) fn row(columns: &[&Column], caller: &Caller) -> String {
    line(columns, |column| (column.text)(caller), &caller.title)
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
    fn a_name_has_room_on_every_terminal_and_all_figures_on_a_wide_one() {
        let caller = Caller { title: "203.0.113.77/32".to_owned(), ..Caller::default() };
        for width in [20, 30, 40, 60, 80, 100, 200] {
            let line: String = row(&fitting(width), &caller).chars().take(width).collect();
            assert!(line.contains("203.0.113.77/32"), "{width}: {line:?}");
        }
        let shown = |width| fitting(width).iter().map(|column| column.head).collect::<Vec<_>>();
        assert_eq!(shown(40), ["share", "req/s"]);
        assert_eq!(shown(80), ["wait[s]", "cpu[s]", "share", "req/s", "held", "refused", "last[s]"]);
        assert_eq!(shown(100).len(), COLUMNS.len());
    }
}
