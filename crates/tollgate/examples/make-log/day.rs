//! A day of a small site: people who come by day, an office behind one address, a search engine that behaves, a crawler
//! that does not, and somebody who guesses passwords.

const DAY_S: u64 = 86_400;

/// Requests are answered with what they cost: a page, a picture, a search, an export.
const PAGE_MS: (u64, u64) = (8, 40);
const ASSET_MS: (u64, u64) = (0, 2);
const SEARCH_MS: (u64, u64) = (80, 260);
const EXPORT_MS: (u64, u64) = (200, 420);

const BROWSERS: [&str; 5] = [
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:144.0) Gecko/20100101 Firefox/144.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/19.1 Safari/605.1.15",
    "Mozilla/5.0 (X11; Linux x86_64; rv:144.0) Gecko/20100101 Firefox/144.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 19_1 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/19.1 Mobile/15E148 Safari/604.1",
];
const SEARCH_ENGINE: &str = "Mozilla/5.0 (compatible; PoliteBot/1.4; +https://search.example/bot.html)";
const CRAWLER: &str = "GreedyBot/2.1 (+https://greedy.example/about)";
const GUESSER: &str = "python-requests/2.32.5";

/// Dice that fall the same way every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number from `low` up to and without `high`.
    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.roll() % (high - low)
    }

    fn one_of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.between(0, choices.len() as u64) as usize]
    }
}

/// A request, before it is a line.
struct Visit<'a> {
    at_s: u64,
    client: String,
    request: String,
    status: u16,
    bytes: u64,
    referer: &'a str,
    agent: &'a str,
    cost_ms: u64,
}

/// The lines of the log, in the order of their times.
pub(crate) fn lines() -> Vec<String> {
    let mut dice = Dice(0x7011_6a7e_5eed);
    let mut visits = Vec::new();
    people(&mut dice, &mut visits);
    office(&mut dice, &mut visits);
    search_engine(&mut dice, &mut visits);
    crawler(&mut dice, &mut visits);
    guesser(&mut dice, &mut visits);
    strays(&mut dice, &mut visits);
    visits.sort_by_key(|visit| visit.at_s);
    visits.iter().map(Visit::line).collect()
}

/// How many of a thousand come in this hour of the day.
fn hourly(hour: u64) -> u64 {
    [8, 5, 4, 3, 4, 8, 18, 36, 54, 62, 64, 62, 58, 60, 62, 60, 58, 60, 66, 72, 70, 56, 36, 18][hour as usize]
}

/// A thousand visitors who look at some pages, each with its pictures.
fn people(dice: &mut Dice, visits: &mut Vec<Visit<'_>>) {
    for hour in 0..24 {
        for _ in 0..hourly(hour) {
            let client = format!(
                "{}.{}.{}.{}",
                dice.between(11, 99),
                dice.between(0, 256),
                dice.between(0, 256),
                dice.between(1, 255)
            );
            let agent = dice.one_of(&BROWSERS);
            let mut at_s = hour * 3600 + dice.between(0, 3600);
            for page in 0..dice.between(1, 9) {
                browse(dice, visits, &client, agent, at_s.min(DAY_S - 1), page > 0);
                at_s += dice.between(4, 90);
            }
        }
    }
}

/// Thirty people in an office from nine to five, all behind one address.
fn office(dice: &mut Dice, visits: &mut Vec<Visit<'_>>) {
    for _ in 0..1_600 {
        let at_s = dice.between(9 * 3600, 17 * 3600);
        let agent = dice.one_of(&BROWSERS[..2]);
        browse(dice, visits, "198.51.100.20", agent, at_s, true);
    }
}

/// One page with what belongs to it.
fn browse<'a>(dice: &mut Dice, visits: &mut Vec<Visit<'a>>, client: &str, agent: &'a str, at_s: u64, inside: bool) {
    let referer = if inside { "https://shop.example/" } else { "https://search.example/?q=teapots" };
    let (path, cost) = match dice.between(0, 100) {
        0..6 => (format!("/search?q={}", dice.one_of(&["teapot", "kettle", "cosy", "oolong"])), SEARCH_MS),
        6..30 => (format!("/category/{}", dice.between(1, 13)), PAGE_MS),
        30..34 => ("/cart".to_string(), PAGE_MS),
        34..36 => ("/login".to_string(), PAGE_MS),
        _ => (format!("/product/{}", dice.between(1, 900)), PAGE_MS),
    };
    let method = if path == "/login" { "POST" } else { "GET" };
    let request = format!("{method} {path} HTTP/2.0");
    let (bytes, cost_ms) = (dice.between(4_000, 40_000), dice.between(cost.0, cost.1));
    visits.push(Visit { at_s, client: client.to_string(), request, status: 200, bytes, referer, agent, cost_ms });
    for _ in 0..dice.between(1, 4) {
        let request = format!("GET /static/{}.webp HTTP/2.0", dice.between(1, 400));
        let (status, bytes) = if dice.between(0, 3) == 0 { (304, 0) } else { (200, dice.between(2_000, 90_000)) };
        let cost_ms = dice.between(ASSET_MS.0, ASSET_MS.1);
        let referer = "https://shop.example/";
        visits.push(Visit { at_s, client: client.to_string(), request, status, bytes, referer, agent, cost_ms });
    }
}

/// One page every forty seconds, all day.
fn search_engine(dice: &mut Dice, visits: &mut Vec<Visit<'_>>) {
    for index in 0..DAY_S / 40 {
        let at_s = (index * 40 + dice.between(0, 20)).min(DAY_S - 1);
        let client = format!("192.0.2.{}", dice.between(10, 14));
        let request = format!("GET /product/{} HTTP/1.1", dice.between(1, 900));
        let (bytes, cost_ms) = (dice.between(4_000, 40_000), dice.between(PAGE_MS.0, PAGE_MS.1));
        visits.push(Visit { at_s, client, request, status: 200, bytes, referer: "-", agent: SEARCH_ENGINE, cost_ms });
    }
}

/// Twice in the day, from 24 addresses of one network: the most expensive pages, several times a second.
fn crawler(dice: &mut Dice, visits: &mut Vec<Visit<'_>>) {
    let raids = [(3 * 3600 + 12 * 60, 95 * 60), (14 * 3600 + 20 * 60, 70 * 60)];
    for (begin_s, length_s) in raids {
        for second in 0..length_s {
            for _ in 0..dice.between(1, 4) {
                let client = format!("203.0.113.{}", dice.between(40, 64));
                let page = dice.between(1, 4_000);
                let request = format!("GET /export/orders?page={page}&size=500 HTTP/1.1");
                let (bytes, cost_ms) = (dice.between(90_000, 400_000), dice.between(EXPORT_MS.0, EXPORT_MS.1));
                let at_s = begin_s + second;
                visits.push(Visit { at_s, client, request, status: 200, bytes, referer: "-", agent: CRAWLER, cost_ms });
            }
        }
    }
}

/// Twenty minutes of passwords from one address.
fn guesser(dice: &mut Dice, visits: &mut Vec<Visit<'_>>) {
    for second in (0..20 * 60).step_by(2) {
        let at_s = 21 * 3600 + 47 * 60 + second;
        let request = "POST /login HTTP/1.1".to_string();
        let (client, cost_ms) = ("100.64.31.7".to_string(), dice.between(60, 90));
        visits.push(Visit { at_s, client, request, status: 401, bytes: 312, referer: "-", agent: GUESSER, cost_ms });
    }
}

/// Noise that every public server receives: handshakes on the wrong port, and probes for other people's mistakes.
fn strays(dice: &mut Dice, visits: &mut Vec<Visit<'_>>) {
    for _ in 0..60 {
        let at_s = dice.between(0, DAY_S);
        let client = format!(
            "{}.{}.{}.{}",
            dice.between(120, 190),
            dice.between(0, 256),
            dice.between(0, 256),
            dice.between(1, 255)
        );
        let request =
            dice.one_of(&[r"\x16\x03\x01\x05\xA8\x01\x00", "GET /.env HTTP/1.1", "GET /wp-login.php HTTP/1.1", "-"]);
        let status = if request.starts_with("GET") { 404 } else { 400 };
        visits.push(Visit {
            at_s,
            client,
            request: request.to_string(),
            status,
            bytes: 157,
            referer: "-",
            agent: "-",
            cost_ms: 0,
        });
    }
}

impl Visit<'_> {
    fn line(&self) -> String {
        let (hour, minute, second) = (self.at_s / 3600, self.at_s / 60 % 60, self.at_s % 60);
        format!(
            "{} - - [12/Nov/2026:{hour:02}:{minute:02}:{second:02} +0000] \"{}\" {} {} \"{}\" \"{}\" {}.{:03}",
            self.client,
            self.request,
            self.status,
            self.bytes,
            self.referer,
            self.agent,
            self.cost_ms / 1000,
            self.cost_ms % 1000,
        )
    }
}
