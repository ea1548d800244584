//! Tags of block devices, by which a later process finds those of an array.

/// Low bits of a tag that number the block devices of an array; the others identify the array.
const NUMBER_BITS: u32 = 16;

/// High bits of a tag that are combined with the namespace of a volume of a pool.
const NAMESPACE_BITS: u32 = 11;

/// Number of a block device among those of its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServedNumber {
    /// The namespace whose pool has the volume, counted from 1, if it is one of these; otherwise 0.
    pub namespace: u16,
    /// 0 for the array itself, or the volume on it. Otherwise the namespace, or the volume of the pool, counted from 1.
    pub number: u16,
}

impl ServedNumber {
    /// The array itself, or the volume on it.
    pub const ARRAY: ServedNumber = ServedNumber { namespace: 0, number: 0 };
}

/// The tag of a block device of an array.
pub(super) fn tag(uuid: &[u8; 16], ServedNumber { namespace, number }: ServedNumber) -> u64 {
    assert!(namespace < 1 << NAMESPACE_BITS, "the namespace {namespace} does not fit into a tag");
    let value = u128::from_ne_bytes(*uuid);
    let array = value as u64 ^ (value >> 64) as u64;
    array >> NUMBER_BITS << NUMBER_BITS ^ (namespace as u64) << (u64::BITS - NAMESPACE_BITS) | number as u64
}

/// The number of the block device with this tag; `None` if it is not one of the array.
pub(super) fn number_of(uuid: &[u8; 16], found: u64) -> Option<ServedNumber> {
    let other = found ^ tag(uuid, ServedNumber::ARRAY);
    let namespace = (other >> (u64::BITS - NAMESPACE_BITS)) as u16;
    let of_array = other << NAMESPACE_BITS >> NAMESPACE_BITS >> NUMBER_BITS == 0;
    of_array.then_some(ServedNumber { namespace, number: other as u16 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_holds_array_namespace_and_number() {
        let [one, other] = [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 9, 4, 5, 6, 7, 8]];
        let [one, other] = [one, other].map(|half: [u8; 8]| {
            let mut uuid = [0; 16];
            uuid[..8].copy_from_slice(&half);
            uuid
        });
        for (namespace, number) in [(0, 0), (0, 1), (0, u16::MAX), (1, 1), (1024, 4097)] {
            let own = ServedNumber { namespace, number };
            assert_eq!(number_of(&one, tag(&one, own)), Some(own));
            assert_eq!(number_of(&other, tag(&one, own)), None);
        }
        // As of the versions before pools on namespaces.
        let array = u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8]) >> 16 << 16;
        assert_eq!(tag(&one, ServedNumber { namespace: 0, number: 7 }), array | 7);
    }
}
