//! The NBD protocol as bytes: messages of clients, and their answers. Fixed newstyle only, as in
//! <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>. All numbers are big-endian.
//!
//! Nothing here waits or reads: a [`Negotiation`] takes options and returns replies, and requests are parsed from their
//! headers. So all input of a client can be tested without a socket (`tests/fuzz.rs`).

use engine::device::{DeviceError, Status};

/// First message of the server: two magic numbers, and the flags for fixed newstyle and for no padding.
pub const GREETING: [u8; 18] = *b"NBDMAGICIHAVEOPT\0\x03";

/// Bytes of the flags that a client answers with.
pub const CLIENT_FLAGS_BYTES: usize = 4;

/// Bytes of an option's header.
pub const OPTION_BYTES: usize = 16;

/// Most bytes of an option's data: names and queries have 4096 at most.
pub const MOST_OPTION_BYTES: u32 = 32 << 10;

/// Most options of one client: clients need less than half of them.
pub const MOST_OPTIONS: u32 = 128;

/// Bytes of a request, without the data of a write.
pub const REQUEST_BYTES: usize = 28;

/// Most bytes of a read or write: the limit that clients assume unless they ask.
pub const MOST_BYTES: u32 = 32 << 20;

/// Preferred size of requests: a block of the volume.
const PREFERRED_BYTES: u32 = 4096;

/// The only context of block status, and its id.
const ALLOCATION: &[u8] = b"base:allocation";
const ALLOCATION_ID: u32 = 1;

const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Error message to a client beyond the limit.
const TOO_MANY: &[u8] = b"too many clients are connected to zoneraid: disconnect one first";

/// Option numbers.
mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Reply types.
mod reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = 1 << 31 | 1;
    pub const ERR_POLICY: u32 = 1 << 31 | 2;
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
}

/// Error numbers of NBD.
mod errno {
    pub const EPERM: u32 = 1;
    pub const EIO: u32 = 5;
    pub const EINVAL: u32 = 22;
    pub const ENOSPC: u32 = 28;
    pub const EOVERFLOW: u32 = 75;
    pub const ENOTSUP: u32 = 95;
}

/// Answer to a fast zero request that would have to write zeros.
pub const NOT_FAST: u32 = errno::ENOTSUP;

/// An exported volume.
#[derive(Clone, Debug)]
pub struct NbdExport {
    /// The name by which clients select it. If it is the only one beside snapshots, an empty name selects it, too.
    pub name: String,
    pub size_bytes: u64,
    pub read_only: bool,
    pub is_snapshot: bool,
}

impl NbdExport {
    /// Transmission flags. A flush on one connection covers all of them: they share the volume.
    fn flags(&self, structured: bool) -> u16 {
        const HAS_FLAGS: u16 = 1 << 0;
        const READ_ONLY: u16 = 1 << 1;
        const FLUSH: u16 = 1 << 2;
        const FUA: u16 = 1 << 3;
        const TRIM: u16 = 1 << 5;
        const WRITE_ZEROES: u16 = 1 << 6;
        const DF: u16 = 1 << 7;
        const MULTI_CONN: u16 = 1 << 8;
        const FAST_ZERO: u16 = 1 << 11;
        let read_only = if self.read_only { READ_ONLY } else { 0 };
        let df = if structured { DF } else { 0 };
        HAS_FLAGS | FLUSH | FUA | TRIM | WRITE_ZEROES | MULTI_CONN | FAST_ZERO | read_only | df
    }
}

/// Next step after an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Option,
    Requests,
    /// The end: the client has aborted, or its request cannot be answered.
    End,
}

/// State of the negotiation with a client.
#[derive(Clone, Debug)]
pub struct Negotiation {
    exports: Vec<NbdExport>,
    /// Index of the selected export.
    selected: usize,
    no_padding: bool,
    options: u32,
    structured: bool,
    /// Whether the client has selected the allocation context.
    allocation: bool,
}

/// Terms negotiated for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdTerms {
    pub structured: bool,
    pub allocation: bool,
    /// Index of the selected export.
    pub export: usize,
    size_bytes: u64,
    read_only: bool,
}

/// Reads numbers and names in sequence.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn number<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn word(&mut self) -> Option<u32> {
        self.number().map(u32::from_be_bytes)
    }

    fn named(&mut self) -> Option<&'a [u8]> {
        let bytes = self.word()?;
        self.take(bytes as usize)
    }

    fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

impl Negotiation {
    /// Begins with the flags with which the client answers the greeting; `None` if it requires an unknown feature.
    pub fn new(exports: Vec<NbdExport>, flags: [u8; CLIENT_FLAGS_BYTES]) -> Option<Negotiation> {
        let flags = u32::from_be_bytes(flags);
        let known = flags & !3 == 0;
        let no_padding = flags & 2 != 0;
        known.then_some(Negotiation {
            exports,
            selected: 0,
            no_padding,
            options: 0,
            structured: false,
            allocation: false,
        })
    }

    /// Index of the export that clients call `name`.
    fn find(&self, name: &[u8]) -> Option<usize> {
        if !name.is_empty() {
            return self.exports.iter().position(|export| export.name.as_bytes() == name);
        }
        let mut volumes = self.exports.iter().enumerate().filter(|(_, export)| !export.is_snapshot);
        volumes.next().filter(|_| volumes.next().is_none()).map(|(index, _)| index)
    }

    /// Parses an option's header: bytes of its data; `None` if it is invalid, or there have been too many options.
    pub fn option_bytes(&mut self, header: &[u8; OPTION_BYTES]) -> Option<u32> {
        let mut reader = Reader(header);
        let magic = u64::from_be_bytes(reader.number()?);
        let (_, bytes) = (reader.word()?, reader.word()?);
        self.options += 1;
        (magic == OPTION_MAGIC && bytes <= MOST_OPTION_BYTES && self.options <= MOST_OPTIONS).then_some(bytes)
    }

    /// Answers an option: `replies` are to be sent in any case.
    pub fn answer(&mut self, header: &[u8; OPTION_BYTES], data: &[u8], replies: &mut Vec<u8>) -> Next {
        let number = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
        let mut say = |kind: u32, parts: &[&[u8]]| put_reply(replies, number, kind, parts);
        match number {
            option::EXPORT_NAME => return self.end_by_name(data, replies),
            option::ABORT => {
                say(reply::ACK, &[]);
                return Next::End;
            }
            option::LIST if data.is_empty() => {
                for name in self.exports.iter().map(|export| export.name.as_bytes()) {
                    say(reply::SERVER, &[&(name.len() as u32).to_be_bytes(), name]);
                }
                say(reply::ACK, &[]);
            }
            option::INFO | option::GO => match read_info(data).map(|name| self.find(name)) {
                None => say(reply::ERR_INVALID, &[]),
                Some(None) => say(reply::ERR_UNKNOWN, &[]),
                Some(Some(found)) => {
                    let export = &self.exports[found];
                    let flags = export.flags(self.structured).to_be_bytes();
                    say(reply::INFO, &[&[0, 0], &export.size_bytes.to_be_bytes(), &flags]);
                    let sizes = [1, PREFERRED_BYTES, MOST_BYTES].map(u32::to_be_bytes);
                    say(reply::INFO, &[&[0, 3], sizes.as_flattened()]);
                    say(reply::ACK, &[]);
                    if number == option::GO {
                        self.selected = found;
                        return Next::Requests;
                    }
                    return Next::Option;
                }
            },
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                say(reply::ACK, &[]);
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => match read_queries(data) {
                Some(_) if !self.structured => say(reply::ERR_INVALID, &[]),
                None => say(reply::ERR_INVALID, &[]),
                Some((name, _)) if self.find(name).is_none() => say(reply::ERR_UNKNOWN, &[]),
                Some((_, queries)) => {
                    let lists = number == option::LIST_META_CONTEXT;
                    let all = lists && (queries.is_empty() || queries.contains(&&b"base:"[..]));
                    let meant = all || queries.contains(&ALLOCATION);
                    let id = if lists { 0 } else { ALLOCATION_ID };
                    if meant {
                        say(reply::META_CONTEXT, &[&id.to_be_bytes(), ALLOCATION]);
                    }
                    if !lists {
                        self.allocation = meant;
                    }
                    say(reply::ACK, &[]);
                }
            },
            option::LIST | option::STRUCTURED_REPLY => say(reply::ERR_INVALID, &[]),
            _ => say(reply::ERR_UNSUP, &[]),
        }
        Next::Option
    }

    /// Refuses an option, since there are too many clients: most clients show the reason.
    pub fn refuse(&self, header: &[u8; OPTION_BYTES], replies: &mut Vec<u8>) -> Next {
        let number = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
        match number {
            // This option can only be refused by closing the connection.
            option::EXPORT_NAME => return Next::End,
            option::ABORT => put_reply(replies, number, reply::ACK, &[]),
            _ => put_reply(replies, number, reply::ERR_POLICY, &[TOO_MANY]),
        }
        if matches!(number, option::ABORT | option::GO) { Next::End } else { Next::Option }
    }

    /// Answers EXPORT_NAME, the oldest way to end the negotiation. It can only be refused by closing the connection.
    fn end_by_name(&mut self, name: &[u8], replies: &mut Vec<u8>) -> Next {
        let Some(found) = self.find(name) else { return Next::End };
        self.selected = found;
        let export = &self.exports[found];
        replies.extend(export.size_bytes.to_be_bytes());
        replies.extend(export.flags(self.structured).to_be_bytes());
        if !self.no_padding {
            replies.extend([0; 124]);
        }
        Next::Requests
    }

    /// The negotiated terms.
    pub fn terms(&self) -> NbdTerms {
        let NbdExport { size_bytes, read_only, .. } = self.exports[self.selected];
        let (structured, allocation, export) = (self.structured, self.allocation, self.selected);
        NbdTerms { structured, allocation, export, size_bytes, read_only }
    }
}

/// The name in the data of INFO and GO. The requested items are ignored: all are sent in any case.
fn read_info(data: &[u8]) -> Option<&[u8]> {
    let mut reader = Reader(data);
    let name = reader.named()?;
    let count = u16::from_be_bytes(reader.number()?);
    reader.take(count as usize * 2)?;
    reader.end().map(|()| name)
}

/// The name and the queries in the data of an option about contexts.
fn read_queries(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let mut reader = Reader(data);
    let name = reader.named()?;
    let count = reader.word()?;
    let mut queries = Vec::new();
    for _ in 0..count {
        queries.push(reader.named()?);
    }
    reader.end().map(|()| (name, queries))
}

fn put_reply(replies: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    replies.extend(REPLY_MAGIC.to_be_bytes());
    for word in [option, kind, bytes as u32] {
        replies.extend(word.to_be_bytes());
    }
    parts.iter().for_each(|part| replies.extend_from_slice(part));
}

/// The operation of a request; offsets and lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NbdOperation {
    /// `whole`: in one chunk.
    Read {
        at: u64,
        bytes: u32,
        whole: bool,
    },
    Write {
        at: u64,
        bytes: u32,
        fua: bool,
    },
    /// Zeros a range. `keep`: without deallocating it; `fast`: only if that is faster than writing zeros.
    Zero {
        at: u64,
        bytes: u32,
        fua: bool,
        keep: bool,
        fast: bool,
    },
    /// Discards a range: it may read as zeros afterwards.
    Trim {
        at: u64,
        bytes: u32,
        fua: bool,
    },
    /// `one`: of the first extent only.
    Status {
        at: u64,
        bytes: u32,
        one: bool,
    },
    Flush,
    Disconnect,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdRequest {
    /// The client's identifier for it.
    pub cookie: u64,
    /// Whether the reply is structured (in chunks).
    pub chunks: bool,
    /// Bytes of data that follow its header.
    pub payload_bytes: u32,
    /// The operation, or the error to answer with.
    pub work: Result<NbdOperation, u32>,
}

impl NbdRequest {
    /// Parses a request's header; `None` if it is invalid: then the start of the next request is unknown.
    pub fn read(header: &[u8; REQUEST_BYTES], terms: &NbdTerms) -> Option<NbdRequest> {
        const READ: u16 = 0;
        const WRITE: u16 = 1;
        const STATUS: u16 = 7;
        let mut reader = Reader(header);
        let magic = reader.word()?;
        let (flags, kind) = (u16::from_be_bytes(reader.number()?), u16::from_be_bytes(reader.number()?));
        let (cookie, at) = (u64::from_be_bytes(reader.number()?), u64::from_be_bytes(reader.number()?));
        let bytes = reader.word()?;
        // More data than this is neither stored nor skipped.
        if magic != REQUEST_MAGIC || kind == WRITE && bytes > 2 * MOST_BYTES {
            return None;
        }
        let payload_bytes = if kind == WRITE { bytes } else { 0 };
        let chunks = terms.structured && (kind == READ || kind == STATUS);
        let work = work(terms, (kind, flags), (at, bytes));
        Some(NbdRequest { cookie, chunks, payload_bytes, work })
    }
}

fn work(terms: &NbdTerms, (kind, flags): (u16, u16), (at, bytes): (u64, u32)) -> Result<NbdOperation, u32> {
    const FUA: u16 = 1 << 0;
    const NO_HOLE: u16 = 1 << 1;
    const DF: u16 = 1 << 2;
    const REQ_ONE: u16 = 1 << 3;
    const FAST_ZERO: u16 = 1 << 4;
    let (fua, whole, one) = (flags & FUA != 0, flags & DF != 0, flags & REQ_ONE != 0);
    let (work, allowed, changes) = match kind {
        0 => (NbdOperation::Read { at, bytes, whole }, if terms.structured { FUA | DF } else { FUA }, false),
        1 => (NbdOperation::Write { at, bytes, fua }, FUA, true),
        2 => return Ok(NbdOperation::Disconnect),
        3 => return if flags & !FUA == 0 { Ok(NbdOperation::Flush) } else { Err(errno::EINVAL) },
        4 => (NbdOperation::Trim { at, bytes, fua }, FUA, true),
        6 => {
            let (keep, fast) = (flags & NO_HOLE != 0, flags & FAST_ZERO != 0);
            (NbdOperation::Zero { at, bytes, fua, keep, fast }, FUA | NO_HOLE | FAST_ZERO, true)
        }
        7 if terms.allocation => (NbdOperation::Status { at, bytes, one }, FUA | REQ_ONE, false),
        _ => return Err(errno::EINVAL),
    };
    let has_data = matches!(work, NbdOperation::Read { .. } | NbdOperation::Write { .. });
    let beyond = at.checked_add(bytes as u64).is_none_or(|end| end > terms.size_bytes);
    if flags & !allowed != 0 || bytes == 0 || has_data && bytes > MOST_BYTES {
        Err(errno::EINVAL)
    } else if changes && terms.read_only {
        Err(errno::EPERM)
    } else if beyond {
        let writes = matches!(work, NbdOperation::Write { .. } | NbdOperation::Zero { .. });
        Err(if writes { errno::ENOSPC } else { errno::EINVAL })
    } else {
        Ok(work)
    }
}

/// Translates an error of the volume.
pub fn errno(error: DeviceError) -> u32 {
    match error {
        DeviceError::Status(Status::CapacityExceeded) => errno::ENOSPC,
        DeviceError::Status(Status::LbaOutOfRange | Status::InvalidField) => errno::EINVAL,
        DeviceError::Status(Status::NamespaceIsWriteProtected) => errno::EPERM,
        _ => errno::EIO,
    }
}

/// Answer to a read that is too long for one chunk.
pub const TOO_LONG: u32 = errno::EOVERFLOW;

/// Most bytes of a reply without its data: the header of a chunk of data, and its offset.
const MOST_HEAD_BYTES: usize = 28;

/// A reply without its data: the data of a read, or the extents of a block status, follow it.
#[derive(Clone, Copy, Debug)]
pub struct ReplyHead {
    bytes: [u8; MOST_HEAD_BYTES],
    length: usize,
}

impl ReplyHead {
    fn of(parts: &[&[u8]]) -> ReplyHead {
        let mut head = ReplyHead { bytes: [0; MOST_HEAD_BYTES], length: 0 };
        for part in parts {
            head.bytes[head.length..][..part.len()].copy_from_slice(part);
            head.length += part.len();
        }
        head
    }
}

impl std::ops::Deref for ReplyHead {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// A simple reply. The data of a read follows it, if there is no error.
pub fn simple(cookie: u64, error: u32) -> ReplyHead {
    ReplyHead::of(&[&SIMPLE_MAGIC.to_be_bytes(), &error.to_be_bytes(), &cookie.to_be_bytes()])
}

/// Chunks of a structured reply.
#[derive(Clone, Copy, Debug)]
pub enum Chunk {
    /// The `bytes` bytes at offset `at`, which follow.
    Data {
        at: u64,
        bytes: u32,
    },
    /// So many extents, which follow as [`extents`] encodes them.
    Extents(usize),
    Error(u32),
}

/// A chunk of a structured reply without its data.
pub fn chunk(cookie: u64, last: bool, chunk: Chunk) -> ReplyHead {
    let (kind, payload_bytes): (u16, u32) = match chunk {
        Chunk::Data { bytes, .. } => (1, 8 + bytes),
        Chunk::Extents(count) => (5, 4 + 8 * count as u32),
        // Without a message.
        Chunk::Error(_) => (1 << 15 | 1, 6),
    };
    let (flags, magic) = ((last as u16).to_be_bytes(), CHUNK_MAGIC.to_be_bytes());
    let head = |payload: &[u8]| {
        let (kind, bytes) = (kind.to_be_bytes(), payload_bytes.to_be_bytes());
        ReplyHead::of(&[&magic, &flags, &kind, &cookie.to_be_bytes(), &bytes, payload])
    };
    match chunk {
        Chunk::Data { at, .. } => head(&at.to_be_bytes()),
        Chunk::Extents(_) => head(&ALLOCATION_ID.to_be_bytes()),
        Chunk::Error(error) => head(&((error as u64) << 16).to_be_bytes()[2..]),
    }
}

/// Encodes extents: their lengths in bytes, and whether they are allocated.
pub fn extents(extents: &[(u32, bool)]) -> Vec<u8> {
    const HOLE_OF_ZEROS: u32 = 3;
    let of = |(bytes, mapped): &(u32, bool)| [*bytes, if *mapped { 0 } else { HOLE_OF_ZEROS }];
    extents.iter().flat_map(of).flat_map(u32::to_be_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export() -> NbdExport {
        NbdExport { name: "tank".into(), size_bytes: 1 << 30, read_only: false, is_snapshot: false }
    }

    fn header(number: u32, data: &[u8]) -> [u8; OPTION_BYTES] {
        let mut header = *b"IHAVEOPT\0\0\0\0\0\0\0\0";
        header[8..12].copy_from_slice(&number.to_be_bytes());
        header[12..].copy_from_slice(&(data.len() as u32).to_be_bytes());
        header
    }

    /// The replies to an option: types with their data.
    fn ask(negotiation: &mut Negotiation, number: u32, data: &[u8]) -> (Next, Vec<(u32, Vec<u8>)>) {
        let (header, mut replies) = (header(number, data), Vec::new());
        assert_eq!(negotiation.option_bytes(&header), Some(data.len() as u32));
        let next = negotiation.answer(&header, data, &mut replies);
        let (mut reader, mut said) = (Reader(&replies), Vec::new());
        while !reader.0.is_empty() {
            assert_eq!(u64::from_be_bytes(reader.number().unwrap()), 0x3_e889_0455_65a9);
            assert_eq!(reader.word(), Some(number));
            said.push((reader.word().unwrap(), reader.named().unwrap().to_vec()));
        }
        (next, said)
    }

    fn about(name: &str, rest: &[u8]) -> Vec<u8> {
        [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), rest].concat()
    }

    fn queries(name: &str, queries: &[&str]) -> Vec<u8> {
        let mut rest = (queries.len() as u32).to_be_bytes().to_vec();
        queries.iter().for_each(|query| rest.extend(about(query, &[])));
        about(name, &rest)
    }

    #[test]
    fn nbd_negotiation_lists_and_selects_export() {
        let mut negotiation = Negotiation::new(vec![export()], [0, 0, 0, 3]).unwrap();
        assert_eq!(ask(&mut negotiation, 3, &[]).1, [(2, about("tank", &[])), (1, Vec::new())]);
        // TLS, and options that do not exist yet.
        for unknown in [5, 11, 4711] {
            assert_eq!(ask(&mut negotiation, unknown, &[]), (Next::Option, vec![(1 << 31 | 1, Vec::new())]));
        }
        // Contexts require structured replies.
        let wanted = queries("", &["other:thing", "base:allocation"]);
        assert_eq!(ask(&mut negotiation, 10, &wanted).1, [(1 << 31 | 3, Vec::new())]);
        assert_eq!(ask(&mut negotiation, 8, &[]).1, [(1, Vec::new())]);
        let context = |id: u8| [&[0, 0, 0, id], &b"base:allocation"[..]].concat();
        assert_eq!(ask(&mut negotiation, 9, &queries("tank", &[])).1, [(4, context(0)), (1, vec![])]);
        assert_eq!(ask(&mut negotiation, 10, &wanted).1, [(4, context(1)), (1, vec![])]);
        let (next, said) = ask(&mut negotiation, 7, &about("tank", &[0, 1, 0, 3]));
        assert_eq!(next, Next::Requests);
        let flags = 0b1001_1110_1101_u16.to_be_bytes();
        let described = [&[0, 0][..], &(1_u64 << 30).to_be_bytes(), &flags].concat();
        assert_eq!((said[0].clone(), said.len()), ((3, described), 3));
        assert_eq!(said[1].1, [0, 3, 0, 0, 0, 1, 0, 0, 16, 0, 2, 0, 0, 0]);
        let terms = negotiation.terms();
        assert!(terms.structured && terms.allocation);
        // A second selection, without contexts, replaces the first.
        ask(&mut negotiation, 10, &queries("tank", &[]));
        assert!(!negotiation.terms().allocation);
    }

    /// Without a name none of several exports is selected.
    #[test]
    fn nbd_negotiation_selects_one_of_several_exports_by_name() {
        let exports = ["mail", "logs"].map(|name| NbdExport { name: name.into(), ..export() });
        let mut negotiation = Negotiation::new(exports.to_vec(), [0, 0, 0, 3]).unwrap();
        let listed = [(2, about("mail", &[])), (2, about("logs", &[])), (1, Vec::new())];
        assert_eq!(ask(&mut negotiation, 3, &[]).1, listed);
        for unknown in ["", "tank"] {
            let said = ask(&mut negotiation, 7, &about(unknown, &[0, 0]));
            assert_eq!(said, (Next::Option, vec![(1 << 31 | 6, Vec::new())]), "{unknown}");
        }
        assert_eq!(ask(&mut negotiation, 7, &about("logs", &[0, 0])).0, Next::Requests);
        assert_eq!(negotiation.terms().export, 1);
        let mut negotiation = Negotiation::new(exports.to_vec(), [0, 0, 0, 3]).unwrap();
        assert_eq!(negotiation.answer(&header(1, b"logs"), b"logs", &mut Vec::new()), Next::Requests);
        assert_eq!(negotiation.terms().export, 1);
        // Snapshots do not change the meaning of the empty name.
        let snapshot = NbdExport { name: "tank@monday".into(), is_snapshot: true, ..export() };
        let mut negotiation = Negotiation::new(vec![snapshot, export()], [0, 0, 0, 3]).unwrap();
        assert_eq!(ask(&mut negotiation, 7, &about("", &[0, 0])).0, Next::Requests);
        assert_eq!(negotiation.terms().export, 1);
    }

    #[test]
    fn nbd_negotiation_refuses_malformed_options() {
        assert!(Negotiation::new(vec![export()], [0, 0, 0, 7]).is_none());
        let mut negotiation = Negotiation::new(vec![export()], [0, 0, 0, 1]).unwrap();
        let mut wrong = header(3, &[]);
        wrong[0] ^= 1;
        assert_eq!(negotiation.option_bytes(&wrong), None);
        assert_eq!(negotiation.option_bytes(b"IHAVEOPT\0\0\0\x07\x7f\0\0\0"), None);
        for data in [&[][..], &[0, 0, 0, 9, 1], &about("tank", &[0]), &about("tank", &[0, 1, 0])] {
            assert_eq!(ask(&mut negotiation, 7, data), (Next::Option, vec![(1 << 31 | 3, Vec::new())]));
        }
        let none = about("pond", &[0, 0]);
        assert_eq!(ask(&mut negotiation, 6, &none), (Next::Option, vec![(1 << 31 | 6, Vec::new())]));
        let mut said = Vec::new();
        assert_eq!(negotiation.answer(&header(1, b"pond"), b"pond", &mut said), Next::End);
        assert_eq!(said, [0; 0]);
        assert_eq!(negotiation.answer(&header(1, b""), b"", &mut said), Next::Requests);
        assert_eq!((said.len(), said[9]), (134, 0b0110_1101));
        while negotiation.option_bytes(&header(3, &[])).is_some() {}
        assert_eq!(negotiation.options, MOST_OPTIONS + 1);
    }

    fn request(flags: u16, kind: u16, at: u64, bytes: u32) -> [u8; REQUEST_BYTES] {
        let mut header = [0; REQUEST_BYTES];
        header[0..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
        header[4..6].copy_from_slice(&flags.to_be_bytes());
        header[6..8].copy_from_slice(&kind.to_be_bytes());
        header[8..16].copy_from_slice(&77_u64.to_be_bytes());
        header[16..24].copy_from_slice(&at.to_be_bytes());
        header[24..28].copy_from_slice(&bytes.to_be_bytes());
        header
    }

    #[test]
    fn nbd_request_is_parsed_or_refused_by_terms() {
        let size_bytes = 1 << 30;
        let plain =
            NbdTerms { structured: false, allocation: false, export: 0, size_bytes, read_only: false };
        let all = NbdTerms { structured: true, allocation: true, ..plain };
        let read = |terms: &NbdTerms, flags, kind, at, bytes| {
            NbdRequest::read(&request(flags, kind, at, bytes), terms).unwrap()
        };
        let write = read(&plain, 1, 1, 512, 4096);
        assert_eq!(write.work, Ok(NbdOperation::Write { at: 512, bytes: 4096, fua: true }));
        assert_eq!((write.cookie, write.payload_bytes, write.chunks), (77, 4096, false));
        assert!(read(&all, 0, 0, 0, 1).chunks && !read(&all, 0, 1, 0, 1).chunks);
        assert_eq!(read(&all, 4, 0, 0, 9).work, Ok(NbdOperation::Read { at: 0, bytes: 9, whole: true }));
        assert_eq!(read(&plain, 4, 0, 0, 9).work, Err(22));
        assert_eq!(read(&plain, 0, 7, 0, 9).work, Err(22));
        assert!(read(&all, 8, 7, 0, u32::MAX / 8).work.is_ok());
        assert_eq!(
            read(&plain, 0b10011, 6, 0, 9).work,
            Ok(NbdOperation::Zero { at: 0, bytes: 9, fua: true, keep: true, fast: true })
        );
        assert_eq!(read(&plain, 0, 3, 0, 0).work, Ok(NbdOperation::Flush));
        assert_eq!(read(&plain, 0, 2, 0, 0).work, Ok(NbdOperation::Disconnect));
        assert_eq!(read(&plain, 0, 0, 0, 0).work, Err(22));
        assert_eq!(read(&plain, 0, 0, 0, MOST_BYTES + 1).work, Err(22));
        for (kind, error) in [(0, 22), (1, 28), (4, 22), (6, 28)] {
            assert_eq!(read(&plain, 0, kind, size_bytes - 1, 2).work, Err(error), "{kind}");
        }
        assert_eq!(read(&plain, 0, 0, u64::MAX, 2).work, Err(22));
        let protected = NbdTerms { read_only: true, ..all };
        for kind in [1, 4, 6] {
            assert_eq!(read(&protected, 0, kind, 0, 9).work, Err(1));
        }
        assert!(NbdRequest::read(&[7; REQUEST_BYTES], &all).is_none());
        assert!(NbdRequest::read(&request(0, 1, 0, u32::MAX), &all).is_none());
    }

    #[test]
    fn nbd_replies_have_layout_of_specification() {
        assert_eq!(&simple(7, 28)[..], b"\x67\x44\x66\x98\0\0\0\x1c\0\0\0\0\0\0\0\x07");
        let data = chunk(7, true, Chunk::Data { at: 9, bytes: 100 });
        assert_eq!(&data[..], b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x07\0\0\0\x6c\0\0\0\0\0\0\0\x09");
        let listed = extents(&[(8, true), (9, false)]);
        let extents = [&chunk(7, false, Chunk::Extents(2))[..], &listed].concat();
        let expected = b"\x66\x8e\x33\xef\0\0\0\x05\0\0\0\0\0\0\0\x07\0\0\0\x14\0\0\0\x01\0\0\0\x08\0\0\0\0\0\0\0\x09\0\0\0\x03";
        assert_eq!(extents, expected);
        let error = chunk(7, true, Chunk::Error(5));
        assert_eq!(&error[..], b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\0\0\0\x07\0\0\0\x06\0\0\0\x05\0\0");
    }
}
