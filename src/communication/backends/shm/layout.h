// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lockstep::shm {

inline constexpr std::size_t kLine = 64;                     // bytes of a cache line
inline constexpr std::size_t kSlots = 32;                    // calls that may be in progress at once
inline constexpr std::size_t kSmallBytes = 8192;             // data of a call beside its descriptor
inline constexpr std::size_t kMostRanks = kSmallBytes / 16;  // see table_bytes()
inline constexpr std::size_t kStages = 4;                    // staging buffers of a rank
inline constexpr std::size_t kStageBytes = std::size_t{256} * 1024;
inline constexpr std::size_t kMessages = 8;  // messages that may be in progress from one rank to another
inline constexpr std::size_t kMessageChunks = 4;
inline constexpr std::size_t kMessageChunkBytes = std::size_t{32} * 1024;
// Messages and parts of this size or more are read where they lie.
inline constexpr std::size_t kReadBytes = std::size_t{64} * 1024;

// What a rank publishes about its next collective call. Only this rank writes it. It first writes the small
// data (or the places of its portions) and its Share, then the fields below, and `number` last (release). The
// others read all of that after they have seen that number (acquire). Reused for call number + kSlots after
// all ranks have completed this one.
struct alignas(2 * kLine) Descriptor {
  std::atomic<std::uint64_t> number{0};  // 1, 2, ... as all ranks count
  std::uint64_t what = 0;                // kind, element, reduction, root: equal on all ranks
  std::uint64_t bytes = 0;               // size of the call; equal on all ranks unless the kind is uneven
  std::uint64_t log_number = 0;          // the call's number in the rank's log, for messages
  std::uint64_t place = 0;               // where the data lies for other ranks: see Memory
  std::uint64_t payload = 0;             // bytes that this rank has for others to read
  std::uint64_t longest_portion = 0;     // of these, for one reader
  std::uint64_t fingerprint = 0;         // see comm::fingerprint(): equal on all ranks
};

// Work sharing of one call on heap tensors: the claimed and the finished parts of a rank's share.
struct alignas(kLine) Share {
  std::atomic<std::uint32_t> claimed{0};
  std::atomic<std::uint32_t> done{0};
};

struct alignas(2 * kLine) Counter {
  std::atomic<std::uint64_t> value{0};
};

// The failure of a group: the first rank that detects it writes it, once.
struct alignas(kLine) GroupFailure {
  enum class Cause : std::uint32_t {
    none,
    peer_lost,
    peer_left,
    timeout,
    disagreement,
    message_mismatch,
    memory_refused,
    aborted
  };
  std::atomic<std::uint32_t> state{0};  // 0 none, 1 being written, 2 complete
  Cause cause = Cause::none;
  std::int32_t reporter = -1;
  std::int32_t culprit = -1;
  std::uint64_t call = 0;
};

// One message between two ranks. The sender owns it while `posted` is even, the receiver while it is odd: the
// sender makes it odd when the header is complete, the receiver makes it even when it has all bytes.
struct alignas(kLine) Message {
  std::atomic<std::uint64_t> posted{0};
  std::uint64_t order = 0;  // 1, 2, ... among the messages from this sender to this receiver
  std::int64_t tag = 0;
  std::uint64_t element = 0;
  std::uint64_t bytes = 0;
  std::uint64_t log_number = 0;
  std::atomic<std::uint64_t> filled{0};  // chunks written by the sender, the first before it posts
  // Where the data lies, if its sender waits until it is read there (see Memory). See Send::withdraws().
  std::atomic<std::uint64_t> place{0};
  // Chunks read by the receiver, of a message of more than kMessageChunks. The receiver leaves it at 0.
  alignas(kLine) std::atomic<std::uint64_t> drained{0};
};

// Whether a rank can read the memory of another process.
enum class MemoryReads : std::uint32_t { untried, work, refused };

struct Channel {
  // Whether the receiver reads messages in the sender's process. It writes this.
  alignas(kLine) std::atomic<MemoryReads> memory_reads{MemoryReads::untried};
  Message messages[kMessages];
  std::byte chunks[kMessages][kMessageChunks][kMessageChunkBytes];
};

// The fixed part of a rank's segment. All of it starts as zero bytes.
struct ControlBlock {
  alignas(kLine) std::atomic<std::uint32_t> sleepers{0};  // threads of this rank that sleep on the bell
  std::atomic<std::uint32_t> bell{0};
  alignas(kLine) std::atomic<std::uint32_t> left{0};  // 1: this rank has closed the group
  std::int32_t process = 0;  // see offer_memory(); written before this rank's first message or call
  std::uint64_t token = 0;
  std::uint64_t token_address = 0;
  std::atomic<std::uint64_t> reads_processes{0};  // see Arrival::all_read_processes()
  Counter completed;                              // collective calls that this rank has finished
  Counter read;                                   // the last call whose data this rank has read where it lies
  Counter staged;                                 // pipeline chunks: written for others to read,
  Counter combined;                               // reduced by this rank,
  Counter taken;                                  // and no longer needed by this rank
  GroupFailure failure;                           // rank 0's is the group's
  Descriptor descriptors[kSlots];
  Share shares[kSlots];
  alignas(4096) std::byte small[kSlots][kSmallBytes];
  alignas(4096) std::byte stages[kStages][kStageBytes];
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// A rank's segment: ControlBlock, one Channel to each rank.
struct Layout {
  explicit Layout(int size) : channels(static_cast<std::size_t>(size)) {}

  std::size_t channels;
  static constexpr std::size_t kHugePage = std::size_t{2} << 20U;

  static constexpr std::size_t channel_offset(std::size_t index) {
    return (sizeof(ControlBlock) + kLine - 1) / kLine * kLine + index * sizeof(Channel);
  }
  std::size_t bytes() const { return (channel_offset(channels) + kHugePage - 1) / kHugePage * kHugePage; }
};

// Where data of a rank lies for the other ranks, in one word: an offset in its heap, which they map, or an
// address in its process, which they may be able to read. 0: nowhere that they can read it.
enum class Memory : std::uint8_t { unreachable, heap, process };

constexpr std::uint64_t place(Memory memory, std::uint64_t at) {
  return at << 2U | static_cast<std::uint64_t>(memory);  // an address has 57 bits at most
}
constexpr Memory memory_of(std::uint64_t place) { return static_cast<Memory>(place & 3U); }
constexpr std::uint64_t offset_of(std::uint64_t place) { return place >> 2U; }

}  // namespace lockstep::shm
