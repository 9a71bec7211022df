// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <sys/types.h>

#include "base/unique_fd.h"

namespace lockstep {

// Memory that several processes map: an anonymous file (memfd_create(2)), which leaves no name behind and
// does not depend on the size of /dev/shm. Only committed or written parts take physical memory. Movable. The
// memory lives until the last process has unmapped it.
class SharedMemory {
 public:
  SharedMemory() = default;
  // Creates `bytes` of address space, all zero. `name` appears in /proc/<pid>/maps.
  // Throws Error when the system refuses.
  static SharedMemory create(const std::string& name, std::size_t bytes);
  // Maps memory that another process created.
  static SharedMemory map(UniqueFd fd);
  // The mapping that map_once() has returned for this memory, as long as something holds it, or a new one.
  static std::shared_ptr<const SharedMemory> map_once(UniqueFd fd);
  // Bytes of address space that all objects of this process map.
  static std::size_t mapped_bytes();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  int fd() const { return fd_.get(); }
  // The memory stays mapped, but cannot be committed or passed on.
  void close_fd() { fd_ = {}; }

  // Allocates physical memory for a part now, so that a shortage is an Error here and not a SIGBUS later.
  // `purpose` is part of the message.
  void commit(std::size_t offset, std::size_t bytes, const std::string& purpose) const;
  // Requests huge pages for a part that has been committed.
  void prefer_huge_pages(std::size_t offset, std::size_t bytes) const noexcept;

 private:
  SharedMemory(UniqueFd fd, std::size_t bytes);

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Sleeps while `word` holds `seen`, at most `limit`; may return early. The word may be in shared memory. See
// futex(2).
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen, std::chrono::microseconds limit);

// Wakes every thread, of any process, that sleeps on `word`.
void futex_wake_all(const std::atomic<std::uint32_t>& word);

// Copies the bytes at `address` of a process of this host (process_vm_readv). False if the system refuses.
bool read_process_memory(pid_t process, std::uint64_t address, std::span<std::byte> target);

// Memory that is left on the host and in its cgroups, in bytes.
std::size_t available_memory();

// Memory of the host that nothing uses, not even as a cache, in bytes. Needs no /proc.
std::size_t unused_memory();

// Physical memory of the host, in bytes.
std::size_t total_memory();

}  // namespace lockstep
