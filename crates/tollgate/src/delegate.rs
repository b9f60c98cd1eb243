//! A macro for types that wrap a value and implement the same trait as it, such as a request with one more property.

/// Defines methods that only call the method of the same name of a field. `delegate! { line: method() -> &[u8]; }`
/// defines `fn method(&self) -> &[u8] { self.line.method() }`.
macro_rules! delegate {
    ($field:ident: $($method:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => { $(
        #[inline]
        fn $method(&self $(, $argument: $type)*) -> $result {
            self.$field.$method($($argument),*)
        }
    )* };
}
