//! The header fields or trailers of a message, in one buffer that is reused for the next message.
//!
//! A map of owned strings would allocate for every field of every request. A proxy reads a few fields and
//! copies the rest, so the fields here are slices of one buffer, in the order received. The names that a gate
//! uses are recognized once, when a field is added.

use tollgate_core::inputs::{Inputs, separator, write_distinct_cookies};

use super::Version;

/// The field names that a gate uses; any other is [`Name::Other`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// `accept`
    Accept,
    /// `connection`
    Connection,
    /// `content-length`
    ContentLength,
    /// `cookie`
    Cookie,
    /// `expect`
    Expect,
    /// `forwarded`
    Forwarded,
    /// `host`
    Host,
    /// `http2-settings`
    Http2Settings,
    /// `keep-alive`
    KeepAlive,
    /// `proxy-authenticate`
    ProxyAuthenticate,
    /// `proxy-authorization`
    ProxyAuthorization,
    /// `proxy-connection`
    ProxyConnection,
    /// `server-timing`
    ServerTiming,
    /// `te`
    Te,
    /// `transfer-encoding`
    TransferEncoding,
    /// `upgrade`
    Upgrade,
    /// `x-forwarded-for`
    XForwardedFor,
    /// `x-forwarded-host`
    XForwardedHost,
    /// `x-forwarded-proto`
    XForwardedProto,
    /// `x-real-ip`
    XRealIp,
    /// Any other name.
    Other,
}

impl Name {
    /// The name for these lower-case bytes.
    pub fn of(name: &[u8]) -> Self {
        match name {
            b"te" => Self::Te,
            b"host" => Self::Host,
            b"accept" => Self::Accept,
            b"cookie" => Self::Cookie,
            b"expect" => Self::Expect,
            b"upgrade" => Self::Upgrade,
            b"forwarded" => Self::Forwarded,
            b"x-real-ip" => Self::XRealIp,
            b"connection" => Self::Connection,
            b"keep-alive" => Self::KeepAlive,
            b"server-timing" => Self::ServerTiming,
            b"content-length" => Self::ContentLength,
            b"http2-settings" => Self::Http2Settings,
            b"x-forwarded-for" => Self::XForwardedFor,
            b"proxy-connection" => Self::ProxyConnection,
            b"x-forwarded-host" => Self::XForwardedHost,
            b"transfer-encoding" => Self::TransferEncoding,
            b"x-forwarded-proto" => Self::XForwardedProto,
            b"proxy-authenticate" => Self::ProxyAuthenticate,
            b"proxy-authorization" => Self::ProxyAuthorization,
            _ => Self::Other,
        }
    }
}

/// The position of a field in the buffer: the name, directly followed by the value.
#[derive(Clone, Copy, Debug)]
struct Slot {
    name: Name,
    /// The index of the first byte of the name.
    start: u32,
    name_len: u32,
    value_len: u32,
}

/// Header or trailer fields in the order received, with names in lower case.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// Names and values, also those of fields that were removed or joined.
    text: Vec<u8>,
    /// One slot per field, in order.
    slots: Vec<Slot>,
}

/// One field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// The recognized name.
    pub name: Name,
    /// The name as lower-case bytes.
    pub name_bytes: &'a [u8],
    /// The value, without surrounding white space.
    pub value: &'a [u8],
}

impl Fields {
    /// Removes all fields and keeps the memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.slots.clear();
    }

    /// The number of fields.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// The length of all names and values in bytes, including those of fields that were removed or joined.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Appends a field. The caller has checked that name and value are valid, and the name may have any case.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        let start = self.text.len();
        self.text.extend_from_slice(name);
        self.text[start..].make_ascii_lowercase();
        let known = Name::of(&self.text[start..]);
        self.text.extend_from_slice(value);
        self.slots.push(Slot {
            name: known,
            start: start as u32,
            name_len: name.len() as u32,
            value_len: value.len() as u32,
        });
    }

    /// All fields in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Field<'_>> {
        self.slots.iter().map(|slot| field_in(&self.text, slot))
    }

    /// The values of all fields with this name, in order.
    pub fn all(&self, name: Name) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.slots.iter().filter(move |slot| slot.name == name).map(|slot| field_in(&self.text, slot).value)
    }

    /// The value of the first field with this name.
    pub fn first(&self, name: Name) -> Option<&[u8]> {
        self.all(name).next()
    }

    /// The value of the first field with this lower-case name.
    pub fn find(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find(|field| field.name_bytes == name).map(|field| field.value)
    }

    /// Whether a comma-separated list of this name contains `token`, ignoring case.
    pub fn has_token(&self, name: Name, token: &[u8]) -> bool {
        self.all(name).any(|value| tokens(value).any(|other| other.eq_ignore_ascii_case(token)))
    }

    /// Whether the sender, which uses this version, keeps the connection open for another message.
    pub(super) fn keeps_alive(&self, version: Version) -> bool {
        match version {
            Version::Http11 => !self.has_token(Name::Connection, b"close"),
            Version::Http10 => self.has_token(Name::Connection, b"keep-alive"),
        }
    }

    /// Keeps only the fields for which `keep` holds.
    pub fn retain(&mut self, mut keep: impl FnMut(Field<'_>) -> bool) {
        let text = &self.text;
        self.slots.retain(|slot| keep(field_in(text, slot)));
    }

    /// Joins all fields with this lower-case name into one, at the position of the first, with `separator`
    /// between the values.
    pub fn join(&mut self, name: &[u8], separator: &[u8]) {
        let has_name = |slot: &Slot| field_in(&self.text, slot).name_bytes == name;
        let Some(first) = self.slots.iter().position(has_name) else { return };
        if !self.slots[first + 1..].iter().any(has_name) {
            return;
        }
        let start = self.text.len();
        self.text.extend_from_slice(name);
        let mut at = first;
        while let Some(&slot) = self.slots.get(at) {
            if field_in(&self.text, &slot).name_bytes != name {
                at += 1;
                continue;
            }
            if at > first {
                self.text.extend_from_slice(separator);
                self.slots.remove(at);
            } else {
                at += 1;
            }
            let value = slot.start as usize + slot.name_len as usize;
            self.text.extend_from_within(value..value + slot.value_len as usize);
        }
        let slot = &mut self.slots[first];
        slot.start = start as u32;
        slot.value_len = (self.text.len() - start - name.len()) as u32;
    }

    /// Reduces each header and cookie that rules use to one value, so that the backend sees the same value as
    /// the rules. Repeated headers are joined. Of a repeated cookie, only the first is kept. Headers and cookies that
    /// some servers would confuse with one of them, such as `x_user` with `x-user`, are dropped.
    pub fn unify(&mut self, inputs: &Inputs) {
        for name in &inputs.headers {
            self.join(name.as_bytes(), separator(name.as_bytes()));
        }
        if !inputs.cookies.is_empty() {
            self.join(b"cookie", separator(b"cookie"));
            self.drop_ambiguous_cookies(inputs);
        }
        if !inputs.headers.is_empty() && self.iter().any(|field| inputs.is_look_alike(field.name_bytes)) {
            self.retain(|field| !inputs.is_look_alike(field.name_bytes));
        }
    }

    fn drop_ambiguous_cookies(&mut self, inputs: &Inputs) {
        let Some(cookies) = self.first(Name::Cookie) else { return };
        // This is rare, so it may allocate.
        let mut distinct = Vec::new();
        if write_distinct_cookies(inputs, cookies, &mut distinct) {
            self.retain(|field| field.name != Name::Cookie);
            if !distinct.is_empty() {
                self.push(b"cookie", &distinct);
            }
        }
    }
}

fn field_in<'a>(text: &'a [u8], slot: &Slot) -> Field<'a> {
    let name_end = slot.start as usize + slot.name_len as usize;
    Field {
        name: slot.name,
        name_bytes: &text[slot.start as usize..name_end],
        value: &text[name_end..name_end + slot.value_len as usize],
    }
}

/// The non-empty members of a comma-separated list, without surrounding white space.
pub fn tokens(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_in_any_case() {
        let mut fields = Fields::default();
        fields.push(b"X-Api-Key", b"K");
        fields.push(b"CONTENT-LENGTH", b"5");
        assert_eq!(fields.find(b"x-api-key"), Some(&b"K"[..]));
        assert_eq!(fields.first(Name::ContentLength), Some(&b"5"[..]));
    }

    #[test]
    fn tokens_are_found_across_lines_and_cases() {
        let mut fields = Fields::default();
        fields.push(b"connection", b"keep-alive , ,x-a");
        fields.push(b"connection", b"UPGRADE");
        assert!(fields.has_token(Name::Connection, b"upgrade"));
        assert!(fields.has_token(Name::Connection, b"X-A"));
        assert!(!fields.has_token(Name::Connection, b"keep"));
    }

    #[test]
    fn lines_of_one_name_are_joined_at_the_position_of_the_first() {
        let mut fields = Fields::default();
        for (name, value) in [("a", "1"), ("x", "2"), ("A", "3"), ("y", "4"), ("a", ""), ("z", "5")] {
            fields.push(name.as_bytes(), value.as_bytes());
        }
        fields.join(b"a", b", ");
        fields.join(b"x", b", ");
        let left: Vec<_> = fields.iter().map(|field| (field.name_bytes, field.value)).collect();
        assert_eq!(left, [(&b"a"[..], &b"1, 3, "[..]), (b"x", b"2"), (b"y", b"4"), (b"z", b"5")]);
    }

    #[test]
    fn cleared_fields_leave_nothing_behind() {
        let mut fields = Fields::default();
        fields.push(b"a", b"1");
        fields.clear();
        fields.push(b"b", b"2");
        assert_eq!(fields.iter().count(), 1);
        assert_eq!(fields.find(b"a"), None);
    }
}
