//! Methods of a trait that only call the same methods of a field.

/// Defines methods that call the methods with the same names of a field.
macro_rules! delegate {
    ($field:ident: $($method:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => { $(
        #[inline]
        fn $method(&self $(, $argument: $type)*) -> $result {
            self.$field.$method($($argument),*)
        }
    )* };
}
