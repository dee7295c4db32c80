//! Numbers for people, as fio shortens them, and dates.

/// Adds up counts of a guest, which need not be sane.
pub fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// `1 block`, `2 blocks`.
pub fn plural(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// A count in four characters and a prefix of 1000: `9999`, `12.3k`, `1.23M`.
pub fn count(number: u64) -> String {
    shorten(number, 1000, &["", "k", "M", "G", "T", "P", "E"])
}

/// Bytes with prefixes of 1024, to be followed by `B` or `B/s`: `4096`, `48.2Mi`.
pub fn binary(number: u64) -> String {
    shorten(number, 1024, &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
}

/// Bytes with prefixes of 1000, to be followed by `B` or `B/s`: `50.5M`.
pub fn decimal(number: u64) -> String {
    count(number)
}

/// As fio shortens: numbers of up to four digits stand as they are; others lose digits until three or four remain.
fn shorten(number: u64, base: u64, prefixes: &[&str]) -> String {
    let (mut whole, mut rest, mut index) = (number, 0, 0);
    while whole > 9999 && index + 1 < prefixes.len() {
        rest = whole % base;
        whole /= base;
        index += 1;
    }
    let prefix = prefixes[index];
    if index == 0 {
        return whole.to_string();
    }
    let decimals = 3usize.saturating_sub(whole.to_string().len());
    format!("{:.decimals$}{prefix}", whole as f64 + rest as f64 / base as f64)
}

/// A bandwidth: `48.2MiB/s (50.5MB/s)`.
pub fn bandwidth(bytes_per_second: u64) -> String {
    format!("{}B/s ({}B/s)", binary(bytes_per_second), decimal(bytes_per_second))
}

/// `number` for each second of a time in nanoseconds; 0 when there was no time.
pub fn per_second(number: u64, nanoseconds: u64) -> u64 {
    match nanoseconds {
        0 => 0,
        _ => u64::try_from(u128::from(number) * 1_000_000_000 / u128::from(nanoseconds)).unwrap_or(u64::MAX),
    }
}

/// The share of `part` in `whole`, in percent; 0 of nothing.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 * 100.0 / whole as f64
    }
}

/// A time in the unit that suits it: `850 ns`, `61.2 ms`, `5.00 s`.
pub fn time(nanoseconds: u64) -> String {
    let (unit, scale) = match nanoseconds {
        0..1_000 => return format!("{nanoseconds} ns"),
        1_000..1_000_000 => ("us", 1e3),
        1_000_000..1_000_000_000 => ("ms", 1e6),
        _ => ("s", 1e9),
    };
    format!("{:.2} {unit}", nanoseconds as f64 / scale)
}

/// Seconds since 1970 as `Tue Dec  1 04:10:39 2026`, in UTC.
pub fn date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (mut day, second) = (seconds / 86_400, seconds % 86_400);
    let weekday = DAYS[(day % 7) as usize];
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    // The calendar repeats after 400 years.
    day %= 146_097;
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if day < length {
            break;
        }
        day -= length;
        year += 1;
    }
    let mut month = 0;
    for length in [
        31,
        if is_leap(year) { 29 } else { 28 },
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    let year = year + seconds / 86_400 / 146_097 * 400;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!(
        "{weekday} {} {:2} {hour:02}:{minute:02}:{second:02} {year}",
        MONTHS[month],
        day + 1
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shortened_as_fio_does() {
        for (number, short) in [
            (0, "0"),
            (999, "999"),
            (9999, "9999"),
            (10_000, "10.0k"),
            (12_345, "12.3k"),
            (123_456, "123k"),
            (1_234_567, "1235k"),
            (12_345_678, "12.3M"),
            (u64::MAX, "18.4E"),
        ] {
            assert_eq!(count(number), short);
        }
        assert_eq!(bandwidth(50_536_448), "48.2MiB/s (50.5MB/s)");
        assert_eq!(binary(4096), "4096");
    }

    #[test]
    fn rates_and_shares_of_nothing() {
        assert_eq!(
            (per_second(5, 0), per_second(5, 500_000_000), per_second(u64::MAX, 1)),
            (0, 10, u64::MAX)
        );
        assert_eq!((percent(1, 0), percent(1, 4)), (0.0, 25.0));
    }

    #[test]
    fn times_and_dates() {
        assert_eq!(
            [time(850), time(61_234), time(61_234_567), time(5_000_000_000)],
            ["850 ns", "61.23 us", "61.23 ms", "5.00 s"]
        );
        for (seconds, text) in [
            (0, "Thu Jan  1 00:00:00 1970"),
            (951_782_400, "Tue Feb 29 00:00:00 2000"),
            (1_796_098_239, "Tue Dec  1 04:10:39 2026"),
            (4_107_542_400, "Mon Mar  1 00:00:00 2100"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }
}
