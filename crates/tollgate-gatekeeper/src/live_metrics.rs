//! A macro that declares a struct of atomic metrics, which threads update, and the struct of their snapshot from one
//! list of fields. The link to masters and the store use it for their metrics.

macro_rules! live_metrics {
    (
        $(#[$live_doc:meta])* $live_vis:vis $live:ident,
        $(#[$doc:meta])* $snapshot:ident { $($(#[$field_doc:meta])* $name:ident: $atomic:ty => $plain:ty,)+ }
    ) => {
        $(#[$live_doc])*
        #[derive(Debug, Default)]
        $live_vis struct $live { $(pub(super) $name: $atomic,)+ }

        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $snapshot { $($(#[$field_doc])* pub $name: $plain,)+ }

        impl $live {
            /// A snapshot of all metrics.
            $live_vis fn read(&self) -> $snapshot {
                $snapshot { $($name: self.$name.load(core::sync::atomic::Ordering::Relaxed),)+ }
            }
        }
    };
}

pub(crate) use live_metrics;
