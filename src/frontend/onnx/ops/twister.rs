//! Random numbers that a seed determines: numpy's legacy generator, the Mersenne Twister MT19937 by Matsumoto and Nishimura, which
//! ONNX's own tests draw from.

/// Words of the generator's state.
const WORDS: usize = 624;

/// The generator.
pub(super) struct Twister {
    state: [u32; WORDS],
    next: usize,
}

impl Twister {
    /// That of a seed.
    pub(super) fn new(seed: u32) -> Twister {
        let mut state = [seed; WORDS];
        for i in 1..WORDS {
            let last = state[i - 1];
            state[i] = (last ^ last >> 30).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Twister { state, next: WORDS }
    }

    fn word(&mut self) -> u32 {
        if self.next == WORDS {
            for i in 0..WORDS {
                let y = self.state[i] & 0x8000_0000 | self.state[(i + 1) % WORDS] & 0x7fff_ffff;
                let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[i] = self.state[(i + 397) % WORDS] ^ y >> 1 ^ odd;
            }
            self.next = 0;
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= y << 7 & 0x9d2c_5680;
        y ^= y << 15 & 0xefc6_0000;
        y ^ y >> 18
    }

    /// The next number from 0 to below 1, of 53 bits.
    pub(super) fn uniform(&mut self) -> f64 {
        let (high, low) = (self.word() >> 5, self.word() >> 6);
        (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_numpys() {
        // numpy.random.seed(0); numpy.random.uniform(size=3)
        let mut t = Twister::new(0);
        let first = [t.uniform(), t.uniform(), t.uniform()];
        assert_eq!(first, [0.548_813_503_927_324_8, 0.715_189_366_372_419_5, 0.602_763_376_071_643_9]);
    }
}
