//! Declares an enumeration and the names of its variants in one list.

/// Declares an enumeration whose variants have names in logs, metrics and APIs.
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $type:ident { $($(#[$variant_attribute:meta])* $variant:ident = $name:literal,)+ }
    ) => {
        $(#[$attribute])*
        $visibility enum $type { $($(#[$variant_attribute])* $variant,)+ }

        impl $type {
            /// All variants, in the order of their declaration.
            $visibility const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name in logs, metrics and APIs.
            $visibility const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}
