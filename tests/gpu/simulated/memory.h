// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace lockstep::simulated {

enum class Place { host, device };

struct Block {
  Place place = Place::host;
  int device = 0;
  std::uintptr_t begin = 0;
  std::size_t size = 0;
};

// All memory that a program has got from the simulated devices. The address of device memory is one that the
// host cannot touch, as with a GPU: it ends by SIGSEGV. What runs on the device finds its bytes by
// bytes_of(). Any thread may call.
class Memory {
 public:
  static Memory& instance();

  // nullptr if the device has no memory left.
  void* allocate(Place place, int device, std::size_t size);
  // false unless `address` is the start of a block of this place.
  bool free(Place place, const void* address);
  // Pinned memory that the program itself has allocated elsewhere.
  void add_host(void* address, std::size_t size);
  bool remove_host(const void* address);
  std::optional<Block> find(const void* address);
  std::size_t used(int device);

  static constexpr std::size_t kPerDevice = std::size_t{8} << 30;
  // The memory that device code accesses for an address of any kind.
  static void* bytes_of(const void* address);

 private:
  Memory();
  std::mutex mutex_;
  std::map<std::uintptr_t, Block> blocks_;  // by address
  std::map<int, std::size_t> used_;
  std::uintptr_t next_ = 0;
};

}  // namespace lockstep::simulated
