//! Notices in the status of the gate. A notice has a `message` about a problem, and the `setting` that resolves it,
//! which is empty if there is none.

use serde_json::Value;

use crate::colours::{BOLD, PLAIN, YELLOW, without_colours};
use crate::terminal_text;

/// The message of a notice, wrapped at `width` columns, and the lines of its setting, which are not wrapped. The live
/// view cuts lines that are too long.
pub(super) fn lines(notice: &Value, width: usize) -> Vec<String> {
    let text = |name: &str| notice[name].as_str().unwrap_or_default();
    let setting: Vec<_> = text("setting").lines().map(terminal_text::escape).collect();
    let colon = if setting.is_empty() { "" } else { ":" };
    let message = format!("Notice: {}{colon}", terminal_text::escape(text("message")));
    let message = terminal_text::wrapped(&message, width).into_iter().map(|line| format!("{YELLOW}{line}{PLAIN}"));
    message.chain(setting.iter().map(|line| format!("    {BOLD}{line}{PLAIN}"))).collect()
}

/// A notice without colours and with its message on one line, for output that is not the live view.
pub(super) fn text(notice: &Value) -> String {
    without_colours(lines(notice, usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_wrapped_and_its_setting_is_not() {
        let notice = serde_json::json!({ "message": "one two three four", "setting": "a = [\"b\"]\nc = 1" });
        assert_eq!(text(&notice), "Notice: one two three four:\n    a = [\"b\"]\n    c = 1\n");
        let fault = serde_json::json!({ "message": "backend http://a is down", "setting": "" });
        assert_eq!(text(&fault), "Notice: backend http://a is down\n");
        let plain: Vec<_> = lines(&notice, 15)
            .iter()
            .map(|line| [YELLOW, BOLD, PLAIN].iter().fold(line.clone(), |line, colour| line.replace(colour, "")))
            .collect();
        assert_eq!(plain, ["Notice: one two", "three four:", "    a = [\"b\"]", "    c = 1"]);
    }
}
