// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/commit_memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <new>
#include <optional>
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
// small is freed and made anew where there is room, and the others stay where they are. An extent has the parts of the commit
// one behind the other. A part has its header, the pickle, the places of the storages, counted from its beginning, and
// the storages. Bytes between them are 0, so equal states are equal bytes.
//
// The process may end between any two instructions, which have their effect in order, because nobody reads before
// the kernel has ended it. `number` is none while anything else of the slot changes, and `capacity` is 0 while
// its memory does.

struct CommitMemory::Slot {
  static constexpr std::int64_t kNone = -1;

  std::atomic<std::int64_t> number{kNone};
  std::uint64_t offset = 0;
  std::uint64_t capacity = 0;  // bytes of the extent, all allocated
  std::uint64_t used = 0;      // bytes of the parts

  std::uint64_t end() const { return offset + capacity; }
};

struct CommitMemory::Header {
  static constexpr std::uint32_t kMagic = 0x4c534d43;
  static constexpr std::uint32_t kFormat = 2;

  std::atomic<std::uint32_t> magic{0};  // 0: not yet written
  std::uint32_t format = kFormat;
  std::array<Slot, 4> slots{};  // two of each Use
};

struct CommitMemory::PartHeader {
  std::int64_t key = 0;
  std::int64_t number = 0;  // of the commit
  std::uint64_t bytes = 0;  // of the part, this header included
  std::uint64_t pickle_bytes = 0;
  std::uint64_t storages = 0;

  const char* pickle() const { return reinterpret_cast<const char*>(this + 1); }
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

std::size_t table_at(std::size_t header_bytes, std::size_t pickle_bytes) {
  return rounded_up(header_bytes + pickle_bytes, kAlignment);
}

// Places in a part.
struct Layout {
  Layout(const serialize::Pickled& pickled, std::size_t header_bytes)
      : table(table_at(header_bytes, pickled.pickle.size())),
        bytes(table + pickled.storages.size() * sizeof(std::uint64_t)) {
    for (const auto& storage : pickled.storages) {
      places.push_back(rounded_up(bytes, kAlignment));
      bytes = places.back() + storage.nbytes();
    }
  }

  std::size_t table;
  std::vector<std::uint64_t> places{};  // of the storages
  std::size_t bytes;
};

[[noreturn]] void refuse_size(std::size_t bytes, int code) {
  const auto limit = soft_limit(RLIMIT_FSIZE);
  throw_error<Error>("memory for commits: a file of {} is needed: {}", bytes_text(bytes),
                     code == EFBIG && limit
                         ? fmt::format("`ulimit -f` allows files of {}; raise it", bytes_text(*limit))
                         : errno_text(code));
}

void clear(std::byte* from, const std::byte* to) {
  if (from < to) std::memset(from, 0, static_cast<std::size_t>(to - from));
}

}  // namespace

CommitMemory::CommitMemory(int fd, Use use)
    : fd_(::fcntl(fd, F_DUPFD_CLOEXEC, 0)), first_slot_(use == Use::commits ? 0 : 2) {
  if (!fd_) throw_error<Error>("memory for commits: descriptor {}: {}", fd, errno_text(errno));
  static_assert(sizeof(Header) <= kHeader);
  map_at_least(kHeader);
  memory_->commit(0, kHeader, "the commits of a rank");
  if (header().magic == 0) initialize();
  if (header().magic == Header::kMagic && header().format == Header::kFormat) return;
  throw_error<Error>(
      "the commits of this rank are of format {}, and this program reads format {}: was the program replaced "
      "by one with another version of Lockstep while it ran? Start the run again",
      header().format, Header::kFormat);
}

void CommitMemory::initialize() {
  auto* const made = new (memory_->data()) Header;
  made->magic.store(Header::kMagic, std::memory_order_release);
}

CommitMemory::Header& CommitMemory::header() const { return *reinterpret_cast<Header*>(memory_->data()); }

CommitMemory::Slot& CommitMemory::slot_of(std::int64_t number) const {
  return header().slots.at(first_slot_ + static_cast<std::size_t>(number % 2));
}

at::Tensor CommitMemory::bytes_at(const void* place, std::size_t count) const {
  return at::from_blob(
      const_cast<void*>(place), {static_cast<std::int64_t>(count)}, [memory = memory_](void*) {}, at::kByte);
}

// Maps the file, which another object may have made larger, and makes it so large.
void CommitMemory::map_at_least(std::size_t bytes) const {
  if (memory_ && memory_->size() >= bytes) return;
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) refuse_size(bytes, errno);
  if (std::cmp_less(status.st_size, bytes)) {
    const FileSizeErrors errors;
    if (::ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0) refuse_size(bytes, errno);
  }
  memory_ =
      std::make_shared<SharedMemory>(SharedMemory::map(UniqueFd(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0))));
}

void CommitMemory::free_pages(std::size_t first, std::size_t last) const {
  if (first >= last) return;
  ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
              static_cast<off_t>(last - first));
}

// An extent of so many bytes for a slot without a commit. Frees everything but the other extents, so that nothing stays of
// one that was being made.
void CommitMemory::make_room(Slot& slot, std::size_t bytes) {
  const auto place = &slot - header().slots.data();
  slot.capacity = 0;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::vector<std::pair<std::size_t, std::size_t>> others;
  for (const auto& each : header().slots)
    if (each.capacity > 0) others.emplace_back(each.offset, each.end());
  std::ranges::sort(others);
  std::size_t free_from = kHeader;
  std::optional<std::size_t> found;
  for (const auto& [first, last] : others) {
    free_pages(free_from, first);
    if (!found && free_from + bytes <= first) found = free_from;
    free_from = last;
  }
  free_pages(free_from, memory_->size());
  const auto offset = found.value_or(free_from);
  map_at_least(offset + bytes);
  memory_->commit(offset, bytes, "the commits of a rank");
  auto& made = header().slots.at(static_cast<std::size_t>(place));  // in the present mapping
  made.offset = offset;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  made.capacity = bytes;
}

// The slot without a commit, with an extent of at least so many bytes.
CommitMemory::Slot& CommitMemory::empty(std::int64_t number, std::size_t bytes, std::size_t spare) {
  slot_of(number).number.store(Slot::kNone);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (slot_of(number).capacity < bytes) make_room(slot_of(number), rounded_up(bytes + spare, kPage));
  map_at_least(slot_of(number).end());
  slot_of(number).used = bytes;
  return slot_of(number);
}

void CommitMemory::write(std::int64_t number, const std::vector<Part>& parts) {
  std::vector<serialize::Pickled> pickled;
  std::vector<Layout> layouts;
  std::vector<std::size_t> sizes;
  std::size_t whole = 0;
  std::size_t spare = kLeastSpare;
  for (const auto& part : parts) {
    pickled.push_back(serialize::pickle_value(part.state));
    layouts.emplace_back(pickled.back(), sizeof(PartHeader));
    sizes.push_back(rounded_up(std::max(layouts.back().bytes, part.least_bytes), kAlignment));
    whole += sizes.back();
    spare = std::max(spare, pickled.back().pickle.size() / 4);
  }
  auto& slot = empty(number, whole, spare);
  auto* begin = memory_->data() + slot.offset;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& [pickle, storages] = pickled[i];
    const auto& layout = layouts[i];
    new (begin) PartHeader{.key = parts[i].key,
                           .number = number,
                           .bytes = sizes[i],
                           .pickle_bytes = pickle.size(),
                           .storages = storages.size()};
    auto* end = begin + sizeof(PartHeader);
    const auto append = [&](std::size_t place, const auto& values) {
      clear(end, begin + place);
      end = std::ranges::copy(std::as_bytes(std::span(values)), begin + place).out;
    };
    append(sizeof(PartHeader), pickle);
    append(layout.table, layout.places);
    for (std::size_t k = 0; k < storages.size(); ++k) {
      const auto bytes = serialize::storage_bytes(storages[k]);
      clear(end, begin + layout.places[k]);
      copy_into(bytes_at(begin + layout.places[k], bytes.nbytes()), bytes);
      end = begin + layout.places[k] + bytes.nbytes();
    }
    begin += sizes[i];
    clear(end, begin);
  }
  slot.number.store(number, std::memory_order_release);
}

std::vector<std::int64_t> CommitMemory::numbers() const {
  std::vector<std::int64_t> complete;
  for (std::int64_t slot = 0; slot < 2; ++slot) {
    const auto number = slot_of(slot).number.load(std::memory_order_acquire);
    if (number != Slot::kNone) complete.push_back(number);
  }
  std::ranges::sort(complete);
  return complete;
}

bool CommitMemory::has(std::int64_t number) const {
  return number >= 0 && slot_of(number).number.load(std::memory_order_acquire) == number;
}

// Those that lie in the slot. Throws Error for bytes that are no parts of the commit.
std::vector<const CommitMemory::PartHeader*> CommitMemory::parts_of(std::int64_t number,
                                                                    const Slot& slot) const {
  std::vector<const PartHeader*> parts;
  for (std::uint64_t at = 0; at < slot.used;) {
    const auto* const part = reinterpret_cast<const PartHeader*>(memory_->data() + slot.offset + at);
    const auto left = slot.used - at;
    const bool fits = left >= sizeof(PartHeader) && part->number == number && part->bytes % kAlignment == 0 &&
                      part->bytes >= sizeof(PartHeader) && part->bytes <= left &&
                      part->pickle_bytes <= part->bytes && part->storages <= part->bytes;
    if (!fits) throw_error<Error>("the memory for commits has no commit {} where it should be", number);
    parts.push_back(part);
    at += part->bytes;
  }
  return parts;
}

std::vector<std::int64_t> CommitMemory::keys(std::int64_t number) const {
  if (!has(number)) throw_error<Error>("there is no commit {} of this rank", number);
  map_at_least(slot_of(number).end());
  std::vector<std::int64_t> keys;
  for (const auto* part : parts_of(number, slot_of(number))) keys.push_back(part->key);
  return keys;
}

const CommitMemory::PartHeader& CommitMemory::find_part(std::int64_t number, std::int64_t key) const {
  if (!has(number)) throw_error<Error>("there is no commit {} of this rank", number);
  map_at_least(slot_of(number).end());
  for (const auto* part : parts_of(number, slot_of(number)))
    if (part->key == key) return *part;
  throw_error<Error>("commit {} has no part {}", number, key);
}

Value CommitMemory::read(std::int64_t number, std::int64_t key) const {
  const auto& header = find_part(number, key);
  const auto* const begin = reinterpret_cast<const std::byte*>(&header);
  const std::span pickle(header.pickle(), header.pickle_bytes);
  std::vector<std::uint64_t> places(header.storages);
  std::memcpy(places.data(), begin + table_at(sizeof(PartHeader), header.pickle_bytes),
              places.size() * sizeof(std::uint64_t));
  std::vector<c10::Storage> loaded(header.storages);
  const auto load_storage = [&](const serialize::StorageRecord& record) {
    const auto index = std::stoull(record.key);
    if (!loaded.at(index)) {
      const auto bytes = bytes_at(begin + places[index], record.bytes);
      loaded[index] = at::empty_like(bytes).copy_(bytes).storage();
    }
    return loaded[index];
  };
  return serialize::unpickle(pickle::read_pickle(pickle, serialize::is_in_checkpoints), load_storage);
}

at::Tensor CommitMemory::bytes(std::int64_t number, std::int64_t key) const {
  const auto& header = find_part(number, key);
  return bytes_at(&header, header.bytes);
}

at::Tensor CommitMemory::bytes(std::int64_t number, std::int64_t key, std::size_t size) const {
  auto own = bytes(number, key);
  if (own.nbytes() == size) return own;
  auto padded = at::zeros({static_cast<std::int64_t>(size)}, at::kByte);
  padded.narrow(0, 0, own.numel()).copy_(own);
  reinterpret_cast<PartHeader*>(padded.mutable_data_ptr())->bytes = size;
  return padded;
}

void CommitMemory::forget_after(std::int64_t number) {
  for (std::int64_t slot = 0; slot < 2; ++slot)
    if (slot_of(slot).number > number) slot_of(slot).number.store(Slot::kNone);
}

at::Tensor CommitMemory::begin(std::int64_t number, std::size_t size) {
  const auto& slot = empty(number, size, 0);
  return bytes_at(memory_->data() + slot.offset, size);
}

void CommitMemory::complete(std::int64_t number) {
  auto& slot = slot_of(number);
  parts_of(number, slot);
  slot.number.store(number, std::memory_order_release);
}

}  // namespace lockstep::checkpointing
