// SPDX-License-Identifier: BSD-3-Clause
#include "board.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/uio.h>
#include <thread>
#include <unistd.h>

namespace lockstep::simulated {
namespace {

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "simulated GPU: NCCL: %s\n", what);
  std::abort();
}

void read_from(pid_t process, const void* from, void* to, std::size_t bytes) {
  if (process == ::getpid()) {
    std::memmove(to, from, bytes);
    return;
  }
  auto* begin = static_cast<char*>(to);
  for (std::size_t done = 0; done < bytes;) {
    const iovec local{begin + done, bytes - done};
    const iovec remote{const_cast<char*>(static_cast<const char*>(from)) + done, bytes - done};
    const auto count = ::process_vm_readv(process, &local, 1, &remote, 1, 0);
    if (count <= 0 && errno == ESRCH) return;  // the rank has died, and the call will be aborted
    if (count <= 0) fail(std::strerror(errno));
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace

Board::Board(std::string name, int rank, int size) : name_(std::move(name)), rank_(rank), size_(size) {
  if (size > kMostRanks) throw std::runtime_error("more ranks than are simulated");
  const int file = ::shm_open(name_.c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0 || ::ftruncate(file, sizeof(BoardPage)) != 0) throw std::runtime_error("shm_open failed");
  void* page = ::mmap(nullptr, sizeof(BoardPage), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (page == MAP_FAILED) throw std::runtime_error("mmap failed");
  page_ = static_cast<BoardPage*>(page);
  ++page_->joined;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (page_->joined < size_) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (std::chrono::steady_clock::now() > deadline) {
      ::shm_unlink(name_.c_str());
      throw std::runtime_error("not all ranks have come");
    }
  }
  ::shm_unlink(name_.c_str());
}

Board::~Board() { ::munmap(page_, sizeof(BoardPage)); }

template <typename Condition>
bool Board::wait(const Condition& condition) const {
  for (int round = 0; !condition(); ++round) {
    if (aborted_) return false;
    if (round < 100) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  return true;
}

void Board::publish(SharedBuffer& shared, std::uint64_t call, const void* buffer) {
  shared.process = ::getpid();
  shared.address = buffer;
  shared.call = call;
}

// NCCL would hang, or mix data.
void Board::compare_calls() const {
  for (int rank = 0; rank < size_; ++rank) {
    if (page_->buffers[rank].call == page_->buffers[rank_].call) continue;
    fail("ranks made different calls");
  }
}

bool Board::meet() {
  const auto meeting = ++page_->meetings[rank_];
  return wait([&] {
    for (int rank = 0; rank < size_; ++rank) {
      if (page_->meetings[rank] < meeting) return false;
    }
    return true;
  });
}

void Board::read(int rank, void* to, std::size_t bytes, std::size_t offset) const {
  const auto& shared = page_->buffers[rank];
  read_from(shared.process, static_cast<const char*>(shared.address.load()) + offset, to, bytes);
}

bool Board::post(int to, std::size_t bytes, const void* buffer) {
  auto& messages = page_->messages[rank_][to];
  if (!wait([&] { return messages.posted - messages.taken < kMostMessages; })) return false;
  publish(messages.buffers[messages.posted % kMostMessages], bytes, buffer);
  ++messages.posted;
  return true;
}

bool Board::take(int from, void* buffer, std::size_t bytes) {
  auto& messages = page_->messages[from][rank_];
  if (!wait([&] { return messages.posted > messages.taken; })) return false;
  const auto& shared = messages.buffers[messages.taken % kMostMessages];
  if (shared.call != bytes) fail("a message is not as long as what it is received into");
  read_from(shared.process, shared.address, buffer, bytes);
  ++messages.taken;
  return true;
}

bool Board::wait_until_taken(int to) {
  auto& messages = page_->messages[rank_][to];
  return wait([&] { return messages.taken == messages.posted; });
}

}  // namespace lockstep::simulated
