//! Attributes of an EP: the defaults, the checks at creation and modification, and the values computed from the
//! attributes (size of the queue pair, limits of posts, receive watermarks).
//!
//! One table defines [`Attributes`] and its conversions from and to `DAT_EP_ATTR`. [`InvalidAttributes`] has no parameter
//! number, because creation and modification report a violation as different parameters.
#![forbid(unsafe_code)]

use dat_abi::*;

use crate::provider::{Extensions, Limits, Op, Work};

/// Defines the attributes, and their conversions from and to `DAT_EP_ATTR`. Each line has an attribute, which has the
/// same name in the record, its type, and the bit that selects it in `dat_ep_modify`.
macro_rules! attributes {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty = $bit:ident;)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub struct $name { $($(#[$doc])* pub $field: $type,)* }

        impl $name {
            /// Reads the attributes in a record that the consumer passes. Its named attributes are ignored.
            pub fn of_record(record: &DAT_EP_ATTR) -> Self {
                $name { $($field: record.$field,)* }
            }

            /// Returns the record for `dat_ep_query`. The counters are its named attributes.
            pub fn to_record(self, (count, list): (i32, *mut DAT_NAMED_ATTR)) -> DAT_EP_ATTR {
                DAT_EP_ATTR {
                    $($field: self.$field,)*
                    ep_transport_specific_count: 0,
                    ep_transport_specific: std::ptr::null_mut(),
                    ep_provider_specific_count: count,
                    ep_provider_specific: list,
                }
            }

            /// Copies the attributes that the mask selects from `asked`.
            pub fn merge(&mut self, asked: &Self, mask: DAT_EP_PARAM_MASK) {
                $(if mask & $bit != 0 { self.$field = asked.$field; })*
            }
        }
    };
}

attributes! {
    /// Attributes as the consumer passes them, and as `dat_ep_query` returns them. They are not validated until
    /// [`Attributes::check`] has passed.
    pub struct Attributes {
        /// Reliable connection is the only supported service type.
        service_type: DAT_SERVICE_TYPE = DAT_EP_FIELD_EP_ATTR_SERVICE_TYPE;
        /// Largest message in bytes; 0 means "not set". Posts are not checked against it (spec/events 4.4).
        max_message_size: u64 = DAT_EP_FIELD_EP_ATTR_MAX_MESSAGE_SIZE;
        /// Largest RDMA transfer in bytes; posts are not checked against it.
        max_rdma_size: u64 = DAT_EP_FIELD_EP_ATTR_MAX_RDMA_SIZE;
        /// Stored for queries only.
        qos: DAT_QOS = DAT_EP_FIELD_EP_ATTR_QOS;
        /// Completion flags of receives. They select the completions that notify.
        recv_completion_flags: DAT_COMPLETION_FLAGS = DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS;
        /// Completion flags of requests. They select the completions that notify.
        request_completion_flags: DAT_COMPLETION_FLAGS = DAT_EP_FIELD_EP_ATTR_REQUEST_COMPLETION_FLAGS;
        /// Maximum number of outstanding receives; with an SRQ, the hard high watermark.
        max_recv_dtos: i32 = DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS;
        max_request_dtos: i32 = DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_DTOS;
        max_recv_iov: i32 = DAT_EP_FIELD_EP_ATTR_MAX_RECV_IOV;
        max_request_iov: i32 = DAT_EP_FIELD_EP_ATTR_MAX_REQUEST_IOV;
        /// Maximum number of outstanding RDMA reads of the peer.
        max_rdma_read_in: i32 = DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IN;
        /// Maximum number of outstanding RDMA reads of this EP; if 0, no read or atomic operation can be posted.
        max_rdma_read_out: i32 = DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_OUT;
        /// The soft high watermark with an SRQ. Otherwise stored for queries only.
        srq_soft_hw: i32 = DAT_EP_FIELD_EP_ATTR_SRQ_SOFT_HW;
        /// Maximum number of segments per RDMA read; 0 means the maximum of other requests.
        max_rdma_read_iov: i32 = DAT_EP_FIELD_EP_ATTR_MAX_RDMA_READ_IOV;
        /// Maximum number of segments per RDMA write; 0 means the maximum of other requests.
        max_rdma_write_iov: i32 = DAT_EP_FIELD_EP_ATTR_MAX_RDMA_WRITE_IOV;
    }
}

/// Limits of the work queue of one direction, receives or requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct QueueAttributes {
    /// Maximum number of outstanding DTOs.
    max_dtos: i32,
    /// Maximum number of segments per DTO.
    max_iov: i32,
}

/// Which directions have an EVD, and whether the EP uses the receives of an SRQ.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AttachedQueues {
    pub recv: bool,
    pub request: bool,
    pub shared: bool,
}

/// High watermarks: limits on the number of outstanding receives. Exceeding the soft one is reported; exceeding the
/// hard one ends the connection (spec/events 5.6).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct HighWatermarks {
    pub soft: Option<u32>,
    pub hard: Option<u32>,
}

/// Error: the attributes violate a rule of spec/endpoints 5.1 or 5.3.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InvalidAttributes;

/// Limits with which a queue pair is created.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QpSize {
    pub max_recvs: u32,
    pub max_requests: u32,
    pub max_recv_iov: u32,
    pub max_request_iov: u32,
    pub max_reads_in: u32,
    pub max_reads_out: u32,
}

/// Limits that a post is checked against.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PostLimits {
    pub recv_iov: usize,
    pub request_iov: usize,
    pub read_iov: usize,
    pub write_iov: usize,
    pub recv_unsignalled: bool,
    /// Whether a receive notifies only if its sender set SOLICITED_WAIT (spec/events 1.3).
    pub recv_solicited: bool,
    pub request_unsignalled: bool,
    /// Completion flags that are refused in a post of a receive.
    pub refused_recv_flags: DAT_COMPLETION_FLAGS,
    pub refused_request_flags: DAT_COMPLETION_FLAGS,
    pub reads: bool,
    /// Whether receives must be posted to an SRQ, never to the EP.
    pub shared: bool,
    pub extensions: Extensions,
    /// Whether the limits allow the fast path for a post of a receive with one segment and no flags: it passes all
    /// checks against the limits, its completion notifies, and it is not traced. The next three fields say the same for
    /// requests. With SUPPRESS as the only flag, sends and writes can take the fast path too.
    pub fast_recvs: bool,
    pub fast_sends: bool,
    pub fast_writes: bool,
    pub fast_reads: bool,
}

/// Completion flags that a post must not have: unknown bits, and UNSIGNALLED unless the EP's completion flags `of_ep`
/// allow it. Known bits that have no effect on this kind of post are ignored.
fn refused_flags(of_ep: DAT_COMPLETION_FLAGS) -> DAT_COMPLETION_FLAGS {
    const KNOWN: DAT_COMPLETION_FLAGS = 0x1F; // spec/events 4.1
    !KNOWN | (!of_ep & DAT_COMPLETION_UNSIGNALLED_FLAG)
}

impl PostLimits {
    /// Returns these limits without fast paths if the EP's posts are traced.
    pub fn traced(self, is_traced: bool) -> Self {
        match is_traced {
            true => PostLimits { fast_recvs: false, fast_sends: false, fast_writes: false, fast_reads: false, ..self },
            false => self,
        }
    }
}

impl HighWatermarks {
    /// Parses a watermark. `DAT_WATERMARK_INFINITE` (-1) means none; other negative values are refused.
    pub fn parse(mark: i32) -> Result<Option<u32>, InvalidAttributes> {
        match mark {
            DAT_WATERMARK_INFINITE => Ok(None),
            mark => u32::try_from(mark).map(Some).map_err(|_| InvalidAttributes),
        }
    }

    fn to_dat(mark: Option<u32>) -> i32 {
        mark.map_or(DAT_WATERMARK_INFINITE, count)
    }
}

impl PostLimits {
    /// Maximum number of segments of a request with this operation.
    pub fn iov(&self, op: Op) -> usize {
        match op.work() {
            Work::Read => self.read_iov,
            Work::Write | Work::WriteImmediate => self.write_iov,
            _ => self.request_iov,
        }
    }
}

impl Attributes {
    fn recv(&self) -> QueueAttributes {
        QueueAttributes { max_dtos: self.max_recv_dtos, max_iov: self.max_recv_iov }
    }

    fn request(&self) -> QueueAttributes {
        QueueAttributes { max_dtos: self.max_request_dtos, max_iov: self.max_request_iov }
    }

    /// Defaults for NULL attributes (spec/endpoints 5.1), reduced to the IA's limits.
    pub fn default_for(attached: AttachedQueues, limits: &Limits) -> Self {
        let dtos = |attached: bool| if attached { clamp(DEFAULT.max_dtos, limits.max_dtos) } else { 0 };
        let max_iov = clamp(DEFAULT.max_iov, limits.max_iov);
        Attributes {
            service_type: DAT_SERVICE_TYPE_RC,
            max_message_size: DEFAULT_SIZE.min(limits.max_message),
            max_rdma_size: DEFAULT_SIZE.min(limits.max_rdma),
            qos: 0,
            recv_completion_flags: DAT_COMPLETION_EVD_THRESHOLD_FLAG,
            request_completion_flags: DAT_COMPLETION_EVD_THRESHOLD_FLAG,
            max_recv_dtos: dtos(attached.recv),
            max_request_dtos: dtos(attached.request),
            max_recv_iov: max_iov,
            max_request_iov: max_iov,
            max_rdma_read_in: clamp(DEFAULT_READS, limits.max_reads_in),
            max_rdma_read_out: clamp(DEFAULT_READS, limits.max_reads_out),
            srq_soft_hw: 0,
            max_rdma_read_iov: 0,
            max_rdma_write_iov: 0,
        }
    }

    /// Checks the attributes of a new EP. Numbers of DTOs above the IA's limit are reduced to it, because programs
    /// request more than they use and treat an error as fatal.
    pub fn check_for_create(mut self, attached: AttachedQueues, limits: &Limits) -> Result<Self, InvalidAttributes> {
        if !attached.shared {
            self.max_recv_dtos = self.max_recv_dtos.min(count(limits.max_dtos));
        }
        self.max_request_dtos = self.max_request_dtos.min(count(limits.max_dtos));
        self.check(attached, limits)?;
        Ok(self)
    }

    /// Checks the rules for new and modified EPs. A direction has both an EVD and DTOs, or neither. Segment limits of
    /// an unused direction are ignored. An EP with an SRQ must have a receive EVD, and has watermarks instead of a
    /// maximum number of receives.
    pub fn check(&self, attached: AttachedQueues, limits: &Limits) -> Result<(), InvalidAttributes> {
        let within = |value: i32, limit: u32| (0..=count(limit)).contains(&value);
        let direction = |QueueAttributes { max_dtos, max_iov }: QueueAttributes, attached: bool| {
            let some = |value: i32, limit: u32| value > 0 && value <= count(limit);
            if attached { some(max_dtos, limits.max_dtos) && some(max_iov, limits.max_iov) } else { max_dtos == 0 }
        };
        let is_mark = |mark: i32| HighWatermarks::parse(mark).is_ok();
        let receives = if attached.shared {
            attached.recv && is_mark(self.max_recv_dtos) && is_mark(self.srq_soft_hw)
        } else {
            direction(self.recv(), attached.recv)
        };
        let good = self.service_type == DAT_SERVICE_TYPE_RC
            && self.recv_completion_flags & DAT_COMPLETION_SUPPRESS_FLAG == 0
            && self.max_message_size <= limits.max_message
            && self.max_rdma_size <= limits.max_rdma
            && receives
            && direction(self.request(), attached.request)
            && within(self.max_rdma_read_in, limits.max_reads_in)
            && within(self.max_rdma_read_out, limits.max_reads_out)
            && self.max_rdma_read_iov >= 0
            && self.max_rdma_write_iov >= 0;
        if good { Ok(()) } else { Err(InvalidAttributes) }
    }

    /// Watermarks of a new EP; none without an SRQ. A soft watermark of 0 counts as not set, because programs fill the
    /// record with zeros; `dat_ep_set_watermark` can set 0 later.
    pub fn marks(&self, attached: AttachedQueues) -> HighWatermarks {
        let mark = |mark: i32| if attached.shared { HighWatermarks::parse(mark).unwrap_or(None) } else { None };
        HighWatermarks { soft: mark(self.srq_soft_hw).filter(|soft| *soft > 0), hard: mark(self.max_recv_dtos) }
    }

    /// Stores the watermarks of an EP with an SRQ in its attributes, where queries read them.
    pub fn set_watermarks(&mut self, marks: HighWatermarks) {
        (self.srq_soft_hw, self.max_recv_dtos) =
            (HighWatermarks::to_dat(marks.soft), HighWatermarks::to_dat(marks.hard));
    }

    /// Size of the queue pair for these attributes. A direction without an EVD gets the default size: it accepts work,
    /// but reports no completions (spec/events 4.8). With an SRQ, the queue pair has no receives of its own.
    pub fn shape(&self, attached: AttachedQueues, limits: &Limits) -> QpSize {
        let direction = |direction: QueueAttributes, attached: bool| {
            let QueueAttributes { max_dtos, max_iov } = if attached { direction } else { DEFAULT };
            (clamp(max_dtos, limits.max_dtos) as u32, clamp(max_iov, limits.max_iov) as u32)
        };
        let (max_recvs, max_recv_iov) = if attached.shared { (0, 0) } else { direction(self.recv(), attached.recv) };
        let (max_requests, max_request_iov) = direction(self.request(), attached.request);
        // Reads and writes use the same queue as sends, but have their own limits of segments.
        let max_request_iov =
            max_request_iov
                .max(clamp(self.max_rdma_read_iov, limits.max_iov) as u32)
                .max(clamp(self.max_rdma_write_iov, limits.max_iov) as u32);
        QpSize {
            max_recvs,
            max_requests,
            max_recv_iov,
            max_request_iov,
            max_reads_in: clamp(self.max_rdma_read_in, limits.max_reads_in) as u32,
            max_reads_out: clamp(self.max_rdma_read_out, limits.max_reads_out) as u32,
        }
    }

    pub fn post_limits(&self, attached: AttachedQueues, limits: &Limits) -> PostLimits {
        let iov = |asked: i32| clamp(asked, limits.max_iov) as usize;
        let or_default =
            |direction: QueueAttributes, attached: bool| iov(if attached { direction } else { DEFAULT }.max_iov);
        let request_iov = or_default(self.request(), attached.request);
        let or_request = |asked: i32| if asked == 0 { request_iov } else { iov(asked) };
        let recv_iov = or_default(self.recv(), attached.recv);
        let recv_solicited = self.recv_completion_flags & DAT_COMPLETION_SOLICITED_WAIT_FLAG != 0;
        let (read_iov, write_iov) = (or_request(self.max_rdma_read_iov), or_request(self.max_rdma_write_iov));
        PostLimits {
            recv_iov,
            request_iov,
            read_iov,
            write_iov,
            recv_unsignalled: self.recv_completion_flags & DAT_COMPLETION_UNSIGNALLED_FLAG != 0,
            recv_solicited,
            request_unsignalled: self.request_completion_flags & DAT_COMPLETION_UNSIGNALLED_FLAG != 0,
            refused_recv_flags: refused_flags(self.recv_completion_flags),
            refused_request_flags: refused_flags(self.request_completion_flags),
            reads: self.max_rdma_read_out > 0,
            shared: attached.shared,
            extensions: limits.extensions,
            fast_recvs: recv_iov > 0 && !recv_solicited && !attached.shared,
            fast_sends: request_iov > 0,
            fast_writes: write_iov > 0,
            fast_reads: read_iov > 0 && self.max_rdma_read_out > 0,
        }
    }

    /// Adapts the attributes when `dat_ep_modify` changes EVDs. A direction without an EVD has no DTOs. A direction
    /// that had no EVD and gets one has the default number of DTOs, and the default number of segments if its own is
    /// invalid; numbers in the same call replace the defaults afterwards. With an SRQ, the attributes of receives are
    /// unchanged.
    pub fn with_evds_changed(mut self, before: AttachedQueues, after: AttachedQueues, limits: &Limits) -> Self {
        let direction = |max_dtos: &mut i32, max_iov: &mut i32, before: bool, after: bool| {
            if !after {
                *max_dtos = 0;
            } else if !before {
                *max_dtos = clamp(DEFAULT.max_dtos, limits.max_dtos);
                if *max_iov <= 0 || *max_iov > count(limits.max_iov) {
                    *max_iov = clamp(DEFAULT.max_iov, limits.max_iov);
                }
            }
        };
        if !after.shared {
            direction(&mut self.max_recv_dtos, &mut self.max_recv_iov, before.recv, after.recv);
        }
        direction(&mut self.max_request_dtos, &mut self.max_request_iov, before.request, after.request);
        self
    }
}

/// Default limits of a direction (spec/endpoints 5.1).
const DEFAULT: QueueAttributes = QueueAttributes { max_dtos: 16, max_iov: 4 };
/// Default maximum number of outstanding RDMA reads, in each direction.
const DEFAULT_READS: i32 = 8;
/// Default maximum of message and RDMA sizes, in bytes.
const DEFAULT_SIZE: u64 = 0x8000_0000;

fn count(limit: u32) -> i32 {
    i32::try_from(limit).unwrap_or(i32::MAX)
}

fn clamp(value: i32, limit: u32) -> i32 {
    value.clamp(0, count(limit))
}

#[cfg(test)]
mod tests;
