// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string>

#include <lockstep/base/unique_fd.h>

namespace lockstep {

/// Memory that several processes map: an anonymous file (memfd_create(2)), so that no name stays behind and
/// a small /dev/shm is no limit. It takes real memory only where it has been committed or written to.
/// Movable. Unmaps and closes at its end; the memory lives until the last process has done so.
class SharedMemory {
 public:
  SharedMemory() = default;
  /// Makes `bytes` of address space, all zero. `name` is seen in /proc/<pid>/maps.
  /// Throws Error when the system refuses.
  static SharedMemory create(const std::string& name, std::size_t bytes);
  /// Maps what another process created.
  static SharedMemory map(UniqueFd fd);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  int fd() const { return fd_.get(); }

  /// Takes real memory for a part now, so that a shortage is an Error here and not a SIGBUS later. `purpose`
  /// goes into the message.
  void commit(std::size_t offset, std::size_t bytes, const std::string& purpose) const;
  /// Asks for huge pages where the kernel grants them, once the part has been committed.
  void prefer_huge_pages(std::size_t offset, std::size_t bytes) const noexcept;

 private:
  SharedMemory(UniqueFd fd, std::size_t bytes);

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Memory that this process may still take before the host or its cgroup runs short, in bytes.
std::size_t available_memory();

/// Physical memory of the host, in bytes.
std::size_t total_memory();

}  // namespace lockstep
