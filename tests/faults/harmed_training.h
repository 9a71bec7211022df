// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>
#include <fcntl.h>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/unique_fd.h"
#include "support/ranks.h"

// Four ranks that train until they are killed, and whose test switches faults on and off.

namespace lockstep::testing {

enum class Fault : std::uint8_t {
  none,
  dead,
  stopped,
  stuck,
  mismatch,
  slow,
  starved,  // in each step
  blocked,  // starved by one batch
  slow_link,
  memory,
  deadlock,
};
// What the test tells the ranks, in memory that they share.
struct Orders {
  std::atomic<Fault> fault{Fault::none};
  std::atomic<int> victim{-1};
  std::atomic<std::uint64_t> step{0};  // of a deadlock
};

class SharedOrders {
 public:
  SharedOrders() : file_(::memfd_create("orders", MFD_CLOEXEC)) {
    if (::ftruncate(file_.get(), sizeof(Orders)) != 0) throw std::runtime_error("ftruncate");
    map();
    new (orders_) Orders;
  }
  explicit SharedOrders(const std::string& path) : file_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) { map(); }
  ~SharedOrders() { ::munmap(orders_, sizeof(Orders)); }
  SharedOrders(const SharedOrders&) = delete;
  SharedOrders& operator=(const SharedOrders&) = delete;

  std::string path() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), file_.get()); }
  void give(Fault fault, int victim, std::uint64_t step = 0) {
    orders_->victim = victim;
    orders_->step = step;
    orders_->fault = fault;
  }
  void take_back() { orders_->fault = Fault::none; }
  bool is(Fault fault) const { return orders_->fault == fault; }
  bool is(Fault fault, int rank) const { return is(fault) && orders_->victim == rank; }
  std::uint64_t step() const { return orders_->step; }
  int victim() const { return orders_->victim; }

 private:
  void map() {
    void* const place = ::mmap(nullptr, sizeof(Orders), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    if (place == MAP_FAILED) throw std::runtime_error("mmap");
    orders_ = static_cast<Orders*>(place);
  }

  UniqueFd file_;
  Orders* orders_ = nullptr;
};

// A scenario of four ranks, with TEST_ORDERS, the path of the orders, and TEST_BACKEND.
extern const Scenario harmed_training;

}  // namespace lockstep::testing
