//! Sizes as people write them.

/// Parses `150MB`, `1.5GiB` or `4096`: a number of bytes, at least 1.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|character: char| !character.is_ascii_digit() && character != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "kib" => 1024.0,
        "mib" => 1_048_576.0,
        "gib" => 1_073_741_824.0,
        other => {
            return Err(format!("`{other}` is no unit; use B, KB, MB, GB, KiB, MiB or GiB"));
        }
    };
    let bytes = number.parse::<f64>().map(|number| (number * scale).round());
    match bytes {
        // Above 2^53 a float cannot represent every integer; no shard is that large.
        Ok(bytes) if (1.0..=9e15).contains(&bytes) => Ok(bytes as u64),
        Ok(_) => Err("must be between 1 byte and 9,000,000 GB".into()),
        Err(_) => Err("is no size; write a number and a unit, such as 150MB".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_decimal_and_binary_units() {
        let sizes = [
            ("1", 1),
            ("4096B", 4096),
            ("2KB", 2_000),
            ("150MB", 150_000_000),
            ("1.5 gb", 1_500_000_000),
            ("2KiB", 2_048),
            ("1MiB", 1 << 20),
            ("3GiB", 3 << 30),
        ];
        for (text, bytes) in sizes {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_size() {
        for text in ["", "MB", "-1MB", "1e3", "0", "0.1B", "1.2.3MB", "5TB", "99999999GB", "١MB"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
