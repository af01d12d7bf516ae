//! Memory of large results, which serves further ones once nobody has them.

use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{MmapOptions, MmapRaw};

use crate::tensor::{DType, Tensor, out_of_memory};

/// Smaller results are cleared as fast as memory for them is found.
const LARGE_RESULT: usize = 128 << 10;

/// Results grow by no more bytes until they take other memory.
const MOST_ROOM: usize = 16 << 20;

/// Memory of the system's for one result, which begins as zeros. (In large pages, which decoders could read their results in again, these gain 2 to 4 %;
/// but the run that is the first to write them waits for whole ones to be cleared.)
#[derive(Debug)]
struct Room(MmapRaw);

impl Room {
    fn new(bytes: usize) -> Room {
        let map = MmapOptions::new().len(bytes).map_anon().unwrap_or_else(|_| out_of_memory(bytes as u128));
        Room(map.into())
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// Memory of results that nobody has any more.
#[derive(Debug, Default)]
pub(super) struct Results(Mutex<Idle>);

#[derive(Debug, Default)]
struct Idle {
    /// The ones that have been there for longest first.
    rooms: Vec<Room>,
    /// No more bytes are kept than one run has had for results.
    most: usize,
}

impl Idle {
    /// Lets those go that have been there for longest, until so many bytes more are not too many.
    fn make_way(&mut self, bytes: usize) {
        let mut kept: usize = self.rooms.iter().map(Room::bytes).sum();
        let more = |room: &Room| {
            let is_over = kept + bytes > self.most;
            kept -= if is_over { room.bytes() } else { 0 };
            is_over
        };
        let gone = self.rooms.iter().map(more).take_while(|gone| *gone).count();
        self.rooms.drain(..gone);
    }
}

/// Memory of a large result, while somebody has it. All of it is initialized: bytes that a run leaves out are zeros, or those of another result.
pub(super) struct ResultBlock {
    /// There until it is dropped.
    room: Option<Room>,
    bytes: usize,
    home: Arc<Results>,
}

impl ResultBlock {
    /// Where it begins.
    pub(super) fn start(&self) -> *mut u8 {
        self.room.as_ref().map_or(std::ptr::null_mut(), |room| room.0.as_mut_ptr())
    }

    /// The result, whose memory serves others once nobody has it.
    pub(super) fn into_tensor(self, dtype: DType, shape: &[usize]) -> Tensor {
        Tensor::from_part(dtype, shape, Arc::new(self), 0).expect("a block has a result's bytes")
    }
}

impl AsRef<[u8]> for ResultBlock {
    fn as_ref(&self) -> &[u8] {
        let Some(room) = &self.room else { return &[] };
        // SAFETY: the room has as many bytes, which were zeros when it was made; nobody writes them once there is a tensor of them.
        unsafe { std::slice::from_raw_parts(room.0.as_ptr(), self.bytes) }
    }
}

impl Drop for ResultBlock {
    fn drop(&mut self) {
        let mut idle = self.home.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(room) = self.room.take().filter(|r| r.bytes() <= idle.most) {
            idle.make_way(room.bytes());
            idle.rooms.push(room);
        }
    }
}

impl Results {
    /// Memory for a run's results of so many bytes: of those that are large, where nobody has them any more. What is new is cleared by the system as
    /// threads come to write it: one thread that does so beforehand would take as long as a third of a run that makes little of much.
    pub(super) fn blocks(self: &Arc<Results>, sizes: impl Iterator<Item = usize>) -> Vec<Option<ResultBlock>> {
        let wanted: Vec<Option<[usize; 2]>> = sizes
            // Of results that grow from run to run, several in a row take the same memory.
            .map(|bytes| {
                let step = bytes.next_power_of_two().clamp(LARGE_RESULT, MOST_ROOM * 8) / 8;
                (bytes >= LARGE_RESULT).then(|| [bytes, bytes.next_multiple_of(step)])
            })
            .collect();
        let all = wanted.iter().flatten().map(|w| w[1]).sum();
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        idle.most = idle.most.max(all);
        let found: Vec<Option<Room>> = wanted
            .iter()
            .map(|wanted| {
                let [bytes, room] = (*wanted)?;
                let at = idle.rooms.iter().position(|r| (bytes..=2 * room).contains(&r.bytes()))?;
                Some(idle.rooms.remove(at))
            })
            .collect();
        // Where results have grown, nobody takes what is too small for them.
        idle.make_way(all);
        drop(idle);
        let made = |(wanted, found): (&Option<[usize; 2]>, Option<Room>)| {
            let [bytes, room] = (*wanted)?;
            let room = Some(found.unwrap_or_else(|| Room::new(room)));
            Some(ResultBlock { room, bytes, home: self.clone() })
        };
        wanted.iter().zip(found).map(made).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 3 << 20;

    fn starts(blocks: &[Option<ResultBlock>]) -> Vec<*mut u8> {
        blocks.iter().flatten().map(ResultBlock::start).collect()
    }

    #[test]
    fn memory_serves_again() {
        let results = Arc::new(Results::default());
        let blocks = results.blocks([BYTES, 10, BYTES / 2].into_iter());
        assert!(blocks[1].is_none(), "small ones are made by others");
        let first = starts(&blocks);
        assert!(blocks.iter().flatten().all(|b| b.as_ref().iter().all(|&x| x == 0)));
        drop(blocks);
        assert_eq!(starts(&results.blocks([BYTES, BYTES / 2].into_iter())), first);
    }

    /// As results of decoders grow, those of later runs find memory like those of earlier ones did.
    #[test]
    fn memory_of_smaller_results_goes() {
        let results = Arc::new(Results::default());
        drop(results.blocks([BYTES; 4].into_iter()));
        let grown = || {
            let mut starts = starts(&results.blocks([BYTES * 2; 4].into_iter()));
            starts.sort_unstable();
            starts
        };
        let first = grown();
        for _ in 0..3 {
            assert_eq!(grown(), first);
        }
        let idle = results.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept: Vec<usize> = idle.rooms.iter().map(Room::bytes).collect();
        assert!(kept.len() == 4 && kept.iter().all(|&bytes| bytes >= BYTES * 2), "{kept:?}");
        assert!(kept.iter().sum::<usize>() <= idle.most);
    }
}
