//! The declared type of a request's body, for rules whose keys are values of a JSON body: `Exchange::read_json` decides
//! by it how long to wait for the body, and whether its values are ambiguous.

use tollgate_wire::http1::Fields;

/// The declared type of a request's body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyType {
    /// A form, or several parts.
    Form,
    /// JSON. Its client sends all of it before it expects a response, so the gate may wait for all of it.
    Json,
    /// Any other type, or none. Many backends parse such a body as JSON whatever its type.
    Other,
    /// Several fields with a type, of which backends may use any.
    Several,
}

impl BodyType {
    pub(super) fn of(fields: &Fields) -> Self {
        let mut types = fields.iter().filter(|field| field.name_bytes == b"content-type").map(|field| field.value);
        let content_type = types.next().unwrap_or_default();
        if types.next().is_some() {
            return Self::Several;
        }
        let media_type = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let is_multipart = media_type.get(..10).is_some_and(|start| start.eq_ignore_ascii_case(b"multipart/"));
        let is_form = is_multipart || media_type.eq_ignore_ascii_case(b"application/x-www-form-urlencoded");
        // A proxy may have joined two types with a comma, so this is neither a form nor JSON for certain.
        if content_type.contains(&b',') {
            return Self::Other;
        }
        let is_suffix = |suffix: &[u8]| {
            media_type.len().checked_sub(suffix.len()).is_some_and(|at| media_type[at..].eq_ignore_ascii_case(suffix))
        };
        if is_form {
            Self::Form
        } else if is_suffix(b"/json") || is_suffix(b"+json") {
            Self::Json
        } else {
            Self::Other
        }
    }
}
