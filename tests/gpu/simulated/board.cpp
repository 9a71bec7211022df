// SPDX-License-Identifier: BSD-3-Clause
#include "board.h"

#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/uio.h>
#include <thread>
#include <unistd.h>

namespace lockstep::simulated {
namespace {

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
    if (count <= 0) return;  // the rank has died: what is read is garbage, and the next meeting fails
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

void Board::show(Shown& shown, const void* buffer) {
  shown.process = ::getpid();
  shown.address = buffer;
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
  const auto& shown = page_->shown[rank];
  read_from(shown.process, static_cast<const char*>(shown.address.load()) + offset, to, bytes);
}

void Board::post(int to, const void* buffer) {
  auto& mail = page_->mail[rank_][to];
  show(mail.shown, buffer);
  ++mail.posted;
}

bool Board::take(int from, void* buffer, std::size_t bytes) {
  auto& mail = page_->mail[from][rank_];
  if (!wait([&] { return mail.posted > mail.taken; })) return false;
  read_from(mail.shown.process, mail.shown.address, buffer, bytes);
  ++mail.taken;
  return true;
}

bool Board::wait_until_taken(int to) {
  auto& mail = page_->mail[rank_][to];
  return wait([&] { return mail.taken == mail.posted; });
}

}  // namespace lockstep::simulated
