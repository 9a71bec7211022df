// SPDX-License-Identifier: BSD-3-Clause
// Long messages, read from the sender's memory where the system allows it.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "backends/shm/communicator.h"
#include "base/deadline.h"
#include "unit/shm/thread_communicator.h"

namespace lockstep::shm {
namespace {

// Two ranks in one thread.
class LongMessages : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = 6 * kMessageChunkBytes + 5;

  LongMessages() {
    offer_memory(zeroth_);
    std::iota(data_.begin(), data_.end(), std::uint8_t{1});
  }

  Send send() {
    const auto* const start = from_heap_ ? zeroth_.heap(0) : reinterpret_cast<std::byte*>(data_.data());
    return {zeroth_, from_, 1, 7, Element::u8, {start, bytes_}, 0};
  }
  Receive receive() {
    received_.assign(bytes_, 0);
    return {first_, to_, 0, 7, Element::u8, {reinterpret_cast<std::byte*>(received_.data()), bytes_}};
  }
  // Advances both until they end.
  void exchange() {
    auto sending = send();
    auto receiving = receive();
    bool sent = false, received = false;
    for (int look = 0; look < 50 && !(sent && received); ++look) {
      sent = sent || sending.advance();
      received = received || receiving.advance();
    }
    EXPECT_TRUE(sent && received);
    EXPECT_EQ(received_, data_);
  }
  Channel& channel() { return zeroth_.channel(0, 1); }

  ThreadTeam threads_{2};
  Communicator zeroth_ = threads_.communicator(0), first_ = threads_.communicator(1);
  Mailbox from_{2}, to_{2};
  std::size_t bytes_ = kBytes;
  bool from_heap_ = false;
  std::vector<std::uint8_t> data_ = std::vector<std::uint8_t>(kBytes), received_;
};

TEST_F(LongMessages, AreReadInPlaceFromTheSecondOn) {
  exchange();
  EXPECT_EQ(channel().memory_reads.load(), MemoryReads::work);
  auto sending = send();
  auto receiving = receive();
  EXPECT_FALSE(sending.advance());
  EXPECT_EQ(channel().messages[0].filled.load(), 0);
  EXPECT_TRUE(receiving.advance());
  EXPECT_EQ(received_, data_);
  EXPECT_TRUE(sending.advance());
}

// Longer than a chunk, but not than the chunks of a slot: its sender does not wait before.
TEST_F(LongMessages, AreReadInPlaceFrom64KiBOn) {
  bytes_ = kReadBytes;
  auto first = send();
  EXPECT_TRUE(first.advance());
  EXPECT_TRUE(receive().advance());
  EXPECT_EQ(channel().memory_reads.load(), MemoryReads::work);
  auto second = send();
  EXPECT_FALSE(second.advance());
  EXPECT_TRUE(receive().advance());
  EXPECT_TRUE(second.advance());
  EXPECT_TRUE(std::ranges::equal(received_, std::span(data_).first(bytes_)));
  --bytes_;
  EXPECT_TRUE(send().advance());
}

// The receiver may compute meanwhile.
TEST_F(LongMessages, OfFewChunksAreCopiedIfNobodyReadsThem) {
  exchange();
  bytes_ = kReadBytes;
  const auto expected = std::vector(data_.begin(), data_.begin() + static_cast<std::ptrdiff_t>(bytes_));
  auto sending = send();
  while (!sending.advance()) {
  }
  std::ranges::fill(data_, std::uint8_t{0});
  EXPECT_TRUE(receive().advance());
  EXPECT_EQ(received_, expected);
  bytes_ = kBytes;
  auto longer = send();
  const Deadline deadline(std::chrono::milliseconds(20));
  while (!deadline.expired()) ASSERT_FALSE(longer.advance()) << "it has more chunks than a slot";
}

TEST_F(LongMessages, OnTheHeapAreReadInPlaceAtOnce) {
  std::ranges::copy(std::as_bytes(std::span(data_)), zeroth_.heap(0));
  from_heap_ = true;
  auto sending = send();
  EXPECT_FALSE(sending.advance());
  EXPECT_EQ(channel().messages[0].filled.load(), 0);
  EXPECT_TRUE(receive().advance());
  EXPECT_TRUE(sending.advance());
  EXPECT_EQ(received_, data_);
}

TEST_F(LongMessages, GoThroughChunksWhereTheProcessIsAnother) {
  zeroth_.own().token ^= 1U;
  for (int i = 0; i < 3; ++i) exchange();
  EXPECT_EQ(channel().memory_reads.load(), MemoryReads::refused);
}

TEST_F(LongMessages, GoThroughChunksAfterTheSystemRefused) {
  exchange();
  zeroth_.own().process = -1;
  for (int i = 0; i < 3; ++i) exchange();
  EXPECT_EQ(channel().memory_reads.load(), MemoryReads::refused);
}

TEST_F(LongMessages, DoNotEndAfterTheirSenderGaveUp) {
  auto left = send();
  auto receiving = receive();
  EXPECT_FALSE(left.advance());
  zeroth_.own().left.store(1);
  EXPECT_FALSE(receiving.advance());
  zeroth_.own().left.store(0);
  zeroth_.fail(GroupFailure::Cause::timeout, 1, 0);
  EXPECT_FALSE(receiving.advance());
}

}  // namespace
}  // namespace lockstep::shm
