// SPDX-License-Identifier: BSD-3-Clause
#include "base/shared_memory.h"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <fcntl.h>
#include <limits>
#include <linux/futex.h>
#include <map>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <unistd.h>
#include <utility>

#include <climits>
#include <fmt/format.h>

#include <lockstep/base/mutex.h>

#include "base/host.h"
#include "base/limits.h"
#include "base/text.h"
#include "base/throw_error.h"

namespace lockstep {
namespace {

// MADV_COLLAPSE of Linux 6.1, which older headers lack.
constexpr int kCollapse = 25;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = 2 * 1024 * 1024;
constexpr double kMegabyte = 1024.0 * 1024.0;

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

std::atomic<std::size_t> all_mapped{0};

[[noreturn]] void fail(const std::string& step) {
  throw_error<Error>("shared memory: {}: {}", step, errno_text(errno));
}

[[noreturn]] void fail_to_map(std::size_t bytes) {
  fail(fmt::format("{} of address space could not be mapped", bytes_text(bytes)));
}

UniqueFd anonymous_file(const std::string& name) {
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw_error<Error>("shared memory: {}", call_error_text("memfd_create", errno));
  return fd;
}

// ftruncate() beyond the limit would be a SIGXFSZ.
void require_file_size(std::size_t bytes) {
  const auto limit = soft_limit(RLIMIT_FSIZE);
  if (!limit || bytes <= *limit) return;
  throw_error<Error>("shared memory: {} are needed, and `ulimit -f` allows files of {}; raise it",
                     bytes_text(bytes), bytes_text(*limit));
}

}  // namespace

std::size_t available_memory() {
  constexpr auto unlimited = std::numeric_limits<std::size_t>::max();
  return std::min<std::size_t>(Cgroups().memory_left().value_or(unlimited),
                               meminfo_bytes("/proc/meminfo", "MemAvailable").value_or(unused_memory()));
}

std::size_t unused_memory() {
  struct sysinfo info {};
  if (::sysinfo(&info) != 0) return total_memory();
  return static_cast<std::size_t>(info.freeram + info.bufferram) * info.mem_unit;
}

std::size_t total_memory() {
  return static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

SharedMemory::SharedMemory(UniqueFd fd, std::size_t bytes) : fd_(std::move(fd)), size_(bytes) {
  // Huge pages need an aligned address: reserve a range that contains one, then release the rest.
  void* const reserved =
      ::mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) fail_to_map(bytes);
  const auto skipped = (kHugePage - reinterpret_cast<std::uintptr_t>(reserved) % kHugePage) % kHugePage;
  auto* const place = static_cast<std::byte*>(reserved) + skipped;
  if (::mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_.get(), 0) == MAP_FAILED) {
    ::munmap(reserved, bytes + kHugePage);
    fail_to_map(bytes);
  }
  const auto whole = (bytes + kPage - 1) / kPage * kPage;
  if (skipped > 0) ::munmap(reserved, skipped);
  ::munmap(place + whole, bytes + kHugePage - skipped - whole);
  data_ = place;
  all_mapped += size_;
}

std::size_t SharedMemory::mapped_bytes() { return all_mapped; }

SharedMemory SharedMemory::create(const std::string& name, std::size_t bytes) {
  require_file_size(bytes);
  auto fd = anonymous_file(name);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) fail("ftruncate");
  // Truncating the file would be a SIGBUS in the other processes.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) fail("sealing its size");
  return {std::move(fd), bytes};
}

SharedMemory SharedMemory::map(UniqueFd fd) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail("fstat");
  return {std::move(fd), static_cast<std::size_t>(status.st_size)};
}

std::shared_ptr<const SharedMemory> SharedMemory::map_once(UniqueFd fd) {
  static Mutex mutex;
  static std::map<std::pair<dev_t, ino_t>, std::weak_ptr<const SharedMemory>> mappings LOCKSTEP_GUARDED_BY(
      mutex);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail("fstat");
  const MutexLock lock(mutex);
  std::erase_if(mappings, [](const auto& entry) { return entry.second.expired(); });
  auto& entry = mappings[{status.st_dev, status.st_ino}];
  auto mapping = entry.lock();
  if (!mapping) entry = mapping = std::make_shared<const SharedMemory>(map(std::move(fd)));
  return mapping;
}

SharedMemory::~SharedMemory() {
  if (data_ == nullptr) return;
  ::munmap(data_, size_);
  all_mapped -= size_;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void SharedMemory::commit(std::size_t offset, std::size_t bytes, const std::string& purpose) const {
  const auto available = available_memory();
  if (bytes > available) {
    throw_error<Error>(
        "memory is short: {:.1f} MiB of shared memory are needed for {}, and {:.1f} MiB are left on the host "
        "or in its cgroup",
        static_cast<double>(bytes) / kMegabyte, purpose, static_cast<double>(available) / kMegabyte);
  }
  int outcome = 0;
  do {
    outcome = ::fallocate(fd_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (outcome != 0 && errno == EINTR);
  if (outcome != 0) {
    throw_error<Error>("memory is short: {:.1f} MiB of shared memory could not be allocated for {}: {}",
                       static_cast<double>(bytes) / kMegabyte, purpose, errno_text(errno));
  }
}

void SharedMemory::prefer_huge_pages(std::size_t offset, std::size_t bytes) const noexcept {
  ::madvise(data_ + offset, bytes, MADV_HUGEPAGE);
  ::madvise(data_ + offset, bytes, kCollapse);
}

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::microseconds limit) {
  const timespec span{.tv_sec = limit.count() / 1'000'000, .tv_nsec = limit.count() % 1'000'000 * 1'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &span, nullptr, 0);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool read_process_memory(pid_t process, std::uint64_t address, std::span<std::byte> target) {
  while (!target.empty()) {
    const iovec here{target.data(), target.size()};
    const iovec there{reinterpret_cast<void*>(address), target.size()};
    const auto count = ::process_vm_readv(process, &here, 1, &there, 1, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    target = target.subspan(static_cast<std::size_t>(count));
    address += static_cast<std::uint64_t>(count);
  }
  return true;
}

}  // namespace lockstep
