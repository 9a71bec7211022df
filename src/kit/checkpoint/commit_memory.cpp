// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/commit_memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <span>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <ATen/Functions.h>

#include "base/host.h"
#include "base/limits.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "checkpoint/tensor_copies.h"
#include "serialize/storage.h"
#include "serialize/torch_format.h"
#include "serialize/unpickler.h"

namespace lockstep::checkpointing {

// Note [Slots of a commit memory]
//
// The file begins with the header. Behind it lies an extent for each slot, in any order: one that becomes too
// small is freed and made anew where there is room, and the other stays where it is. An extent has the pickle,
// the places of the storages, counted from its beginning, and the storages.
//
// The process may end between any two instructions, which have their effect in order, because nobody reads before
// the kernel has ended it. `number` is none while anything else of the slot changes, and `capacity` is 0 while
// its memory does.

struct CommitMemory::Slot {
  static constexpr std::int64_t kNone = -1;

  std::atomic<std::int64_t> number{kNone};
  std::uint64_t offset = 0;
  std::uint64_t capacity = 0;  // bytes of the extent, all allocated
  std::uint64_t pickle_bytes = 0;
  std::uint64_t storages = 0;

  std::uint64_t end() const { return offset + capacity; }
};

struct CommitMemory::Header {
  static constexpr std::uint32_t kMagic = 0x4c534d43;
  static constexpr std::uint32_t kFormat = 1;

  std::atomic<std::uint32_t> magic{0};  // 0: not yet written
  std::uint32_t format = kFormat;
  std::array<Slot, 2> slots{};
};

namespace {

constexpr std::size_t kHeader = 4096;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kAlignment = 64;
// Pickles differ by the digits of their numbers.
constexpr std::size_t kLeastSpare = 16384;

std::size_t rounded_up(std::size_t bytes, std::size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

// Places in an extent.
struct Layout {
  explicit Layout(const serialize::Pickled& pickled) {
    bytes = table_at(pickled.pickle.size()) + pickled.storages.size() * sizeof(std::uint64_t);
    for (const auto& storage : pickled.storages) {
      places.push_back(rounded_up(bytes, kAlignment));
      bytes = places.back() + storage.nbytes();
    }
  }
  static std::size_t table_at(std::size_t pickle_bytes) { return rounded_up(pickle_bytes, kAlignment); }

  std::vector<std::uint64_t> places{};  // of the storages
  std::size_t bytes = 0;
};

at::Tensor bytes_at(std::byte* place, std::uint64_t count) {
  return at::from_blob(place, {static_cast<std::int64_t>(count)}, at::kByte);
}

[[noreturn]] void refuse_size(std::size_t bytes, int code) {
  const auto limit = soft_limit(RLIMIT_FSIZE);
  throw_error<Error>("memory for commits: a file of {} is needed: {}", bytes_text(bytes),
                     code == EFBIG && limit
                         ? fmt::format("`ulimit -f` allows files of {}; raise it", bytes_text(*limit))
                         : errno_text(code));
}

}  // namespace

CommitMemory::CommitMemory(int fd) : fd_(::fcntl(fd, F_DUPFD_CLOEXEC, 0)) {
  if (!fd_) throw_error<Error>("memory for commits: descriptor {}: {}", fd, errno_text(errno));
  static_assert(sizeof(Header) <= kHeader);
  map_at_least(kHeader);
  memory_.commit(0, kHeader, "the commits of a rank");
  if (header().magic == 0) initialize();
  if (header().magic == Header::kMagic && header().format == Header::kFormat) return;
  throw_error<Error>(
      "the commits of this rank are of format {}, and this program reads format {}: was the program replaced "
      "by one with another version of Lockstep while it ran? Start the run again",
      header().format, Header::kFormat);
}

void CommitMemory::initialize() {
  auto* const made = new (memory_.data()) Header;
  made->magic.store(Header::kMagic, std::memory_order_release);
}

CommitMemory::Header& CommitMemory::header() const { return *reinterpret_cast<Header*>(memory_.data()); }

CommitMemory::Slot& CommitMemory::slot_of(std::int64_t number) const {
  return header().slots.at(static_cast<std::size_t>(number % 2));
}

// Maps the file, which another object may have made larger, and makes it so large.
void CommitMemory::map_at_least(std::size_t bytes) const {
  if (memory_.size() >= bytes) return;
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) refuse_size(bytes, errno);
  if (std::cmp_less(status.st_size, bytes)) {
    const FileSizeErrors errors;
    if (::ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0) refuse_size(bytes, errno);
  }
  memory_ = SharedMemory::map(UniqueFd(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0)));
}

void CommitMemory::free_pages(std::size_t first, std::size_t last) const {
  if (first >= last) return;
  ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
              static_cast<off_t>(last - first));
}

// An extent of so many bytes for a slot without a commit.
void CommitMemory::make_room(std::int64_t number, std::size_t bytes) {
  slot_of(number).capacity = 0;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  const auto other = std::pair(slot_of(number + 1).offset, slot_of(number + 1).end());
  const bool has_other = other.first < other.second;
  // Everything but the other slot, so that nothing stays of an extent that was being made.
  free_pages(kHeader, has_other ? other.first : memory_.size());
  if (has_other) free_pages(other.second, memory_.size());
  const auto offset = has_other && kHeader + bytes > other.first ? other.second : kHeader;
  map_at_least(offset + bytes);
  memory_.commit(offset, bytes, "the commits of a rank");
  auto& slot = slot_of(number);
  slot.offset = offset;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  slot.capacity = bytes;
}

void CommitMemory::write(std::int64_t number, const Value& state) {
  const auto pickled = serialize::pickle_value(state);
  const Layout layout(pickled);
  slot_of(number).number.store(Slot::kNone);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const auto spare = std::max(kLeastSpare, pickled.pickle.size() / 4);
  if (slot_of(number).capacity < layout.bytes) make_room(number, rounded_up(layout.bytes + spare, kPage));
  auto& slot = slot_of(number);
  auto* const extent = memory_.data() + slot.offset;
  slot.pickle_bytes = pickled.pickle.size();
  slot.storages = pickled.storages.size();
  std::ranges::copy(std::as_bytes(std::span(pickled.pickle)), extent);
  std::ranges::copy(std::as_bytes(std::span(layout.places)), extent + Layout::table_at(slot.pickle_bytes));
  for (std::size_t i = 0; i < pickled.storages.size(); ++i) {
    const auto bytes = serialize::storage_bytes(pickled.storages[i]);
    copy_into(bytes_at(extent + layout.places[i], bytes.nbytes()), bytes);
  }
  slot.number.store(number, std::memory_order_release);
}

std::vector<std::int64_t> CommitMemory::numbers() const {
  std::vector<std::int64_t> complete;
  for (const auto& slot : header().slots) {
    const auto number = slot.number.load(std::memory_order_acquire);
    if (number != Slot::kNone) complete.push_back(number);
  }
  std::ranges::sort(complete);
  return complete;
}

Value CommitMemory::read(std::int64_t number) const {
  if (number < 0 || slot_of(number).number.load(std::memory_order_acquire) != number)
    throw_error<Error>("there is no commit {} of this rank", number);
  map_at_least(slot_of(number).end());
  const auto& slot = slot_of(number);
  auto* const extent = memory_.data() + slot.offset;
  const std::span pickle(reinterpret_cast<const char*>(extent), slot.pickle_bytes);
  std::vector<std::uint64_t> places(slot.storages);
  std::memcpy(places.data(), extent + Layout::table_at(slot.pickle_bytes),
              places.size() * sizeof(std::uint64_t));
  std::vector<c10::Storage> loaded(slot.storages);
  const auto load_storage = [&](const serialize::StorageRecord& record) {
    const auto index = std::stoull(record.key);
    if (!loaded.at(index)) {
      const auto bytes = bytes_at(extent + places[index], record.bytes);
      loaded[index] = at::empty_like(bytes).copy_(bytes).storage();
    }
    return loaded[index];
  };
  return serialize::unpickle(pickle::read_pickle(pickle, serialize::is_in_checkpoints), load_storage);
}

void CommitMemory::forget_after(std::int64_t number) {
  for (auto& slot : header().slots) {
    if (slot.number > number) slot.number.store(Slot::kNone);
  }
}

}  // namespace lockstep::checkpointing
