//! A limit in five lines: `cargo run -p tollgate-gatekeeper --example first`
#![allow(clippy::print_stdout, reason = "the output is for the user")]

use tollgate_gatekeeper::{Limiter, per_second};

fn main() -> Result<(), Box<dyn core::error::Error>> {
    let limiter = Limiter::builder().rule(per_second(10).burst(20)).build()?;
    for _ in 0..25 {
        match limiter.check("ann") {
            Ok(_) => println!("served"),
            Err(refused) => println!("retry in {:?}", refused.retry_after),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_runs() {
        super::main().expect("the rules are valid");
    }
}
