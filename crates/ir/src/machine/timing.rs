//! What a core of a processor does in a cycle, and what lies behind it: the facts that schedules and cost models ask for.

/// Instructions of one kind on whole vector registers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rate {
    /// How many begin in a cycle.
    pub per_cycle: f64,
    /// Cycles from operands to result.
    pub latency: f64,
}

/// A cache level, as one core sees it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CacheLevel {
    /// Its size in bytes. Of a shared cache, a core's share.
    pub bytes: i64,
    /// How many lines a set holds.
    pub ways: i64,
    /// Bytes of a line.
    pub line: i64,
    /// Bytes a cycle that loops over what it holds read from it, sustained.
    pub bytes_per_cycle: f64,
    /// Cycles from an address to its data.
    pub latency: f64,
}

impl CacheLevel {
    /// Bytes after which addresses meet the same set again.
    pub fn set_stride(&self) -> i64 {
        (self.bytes / self.ways.max(1)).max(self.line)
    }
}

/// Matrix registers (AMX).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TileRate {
    /// Cycles of a product of two tiles.
    pub product: f64,
    /// Cycles to load a tile.
    pub load: f64,
    /// Cycles to begin and end a block of sums, and to store a tile of it.
    pub block: f64,
}

/// One core.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Timing {
    /// Cycles per second under vector load. Of the table: a nominal figure, since choices must not change from one minute to the next.
    pub clock: f64,
    /// Fused multiply-adds of `float32`; where there are none, pairs of a multiplication and an addition.
    pub fma: Rate,
    /// Dot products of four bytes into each 32-bit lane, where the instruction set has them; else of two numbers of 16 bits, the addition
    /// included (`pmaddwd` and `paddd`).
    pub dot: Rate,
    /// Additions of integers that begin in a cycle.
    pub adds: f64,
    /// Vectors that are loaded in a cycle, from the first cache.
    pub loads: f64,
    /// Vectors that are stored in a cycle.
    pub stores: f64,
    /// The data cache next to the core.
    pub l1: CacheLevel,
    /// The second one.
    pub l2: CacheLevel,
    /// The last one before memory.
    pub l3: CacheLevel,
    /// Steps of so many bytes and more are too long for the hardware's prefetchers.
    pub prefetch_reach: i64,
    /// Bytes per second between one core and the caches that layers' results live in.
    pub memory: f64,
    /// Bytes per second that one core reads from main memory.
    pub dram: f64,
    /// Matrix registers, where the instruction set has them.
    pub tiles: TileRate,
}

/// A fact of [`Timing`] by name.
pub struct Fact {
    /// What `resat machine` calls it.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Reads it.
    pub get: fn(&Timing) -> f64,
    /// Writes it.
    pub set: fn(&mut Timing, f64),
}

macro_rules! facts {
    ($($name:literal, $unit:literal, $($field:ident).+ as $ty:ty;)*) => {
        &[$(Fact { name: $name, unit: $unit, get: |t| t.$($field).+ as f64, set: |t, v| t.$($field).+ = v as $ty }),*]
    };
}

/// All facts, in the order in which they are shown.
pub const FACTS: &[Fact] = facts! {
    "clock", "Hz", clock as f64;
    "FMA throughput", "vectors/cycle", fma.per_cycle as f64;
    "FMA latency", "cycles", fma.latency as f64;
    "int8 dot throughput", "vectors/cycle", dot.per_cycle as f64;
    "int8 dot latency", "cycles", dot.latency as f64;
    "integer additions", "vectors/cycle", adds as f64;
    "loads", "vectors/cycle", loads as f64;
    "stores", "vectors/cycle", stores as f64;
    "L1 size", "bytes", l1.bytes as i64;
    "L1 ways", "lines", l1.ways as i64;
    "L1 line", "bytes", l1.line as i64;
    "L1 bandwidth", "bytes/cycle", l1.bytes_per_cycle as f64;
    "L1 latency", "cycles", l1.latency as f64;
    "L2 size", "bytes", l2.bytes as i64;
    "L2 ways", "lines", l2.ways as i64;
    "L2 line", "bytes", l2.line as i64;
    "L2 bandwidth", "bytes/cycle", l2.bytes_per_cycle as f64;
    "L2 latency", "cycles", l2.latency as f64;
    "L3 size", "bytes/core", l3.bytes as i64;
    "L3 ways", "lines", l3.ways as i64;
    "L3 line", "bytes", l3.line as i64;
    "L3 bandwidth", "bytes/cycle", l3.bytes_per_cycle as f64;
    "L3 latency", "cycles", l3.latency as f64;
    "prefetch reach", "bytes", prefetch_reach as i64;
    "bandwidth beyond L2", "bytes/s", memory as f64;
    "DRAM bandwidth", "bytes/s", dram as f64;
    "tile product", "cycles", tiles.product as f64;
    "tile load", "cycles", tiles.load as f64;
    "tile block", "cycles", tiles.block as f64;
};

/// A fact by its name.
pub fn fact(name: &str) -> Option<&'static Fact> {
    FACTS.iter().find(|f| f.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::families::FAMILIES;

    #[test]
    fn facts_read_what_they_write_and_nothing_else() {
        for (i, fact) in FACTS.iter().enumerate() {
            let before = FAMILIES[0].timing;
            let mut after = before;
            (fact.set)(&mut after, 12345.0);
            assert_eq!((fact.get)(&after), 12345.0, "{}", fact.name);
            let others = FACTS.iter().enumerate().filter(|(k, _)| *k != i);
            assert!(others.map(|(_, f)| f).all(|f| (f.get)(&after) == (f.get)(&before)), "{}", fact.name);
        }
        assert!(fact("L2 ways").is_some() && fact("L4 ways").is_none());
    }
}
