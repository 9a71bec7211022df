// SPDX-License-Identifier: BSD-3-Clause
#include "base/shared_memory.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <fcntl.h>
#include <limits>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "unit/base/child.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::size_t kBytes = 3 * 4096 + 100;
constexpr std::size_t kHugePage = std::size_t{2} << 20U;

UniqueFd copy_of(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

std::size_t real_bytes(const SharedMemory& memory) {
  struct stat status {};
  EXPECT_EQ(::fstat(memory.fd(), &status), 0);
  return static_cast<std::size_t>(status.st_blocks) * 512;
}

TEST(SharedMemory, StartsZeroedAtAHugePage) {
  const auto memory = SharedMemory::create("test", kBytes);
  ASSERT_EQ(memory.size(), kBytes);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % kHugePage, 0U);
  EXPECT_TRUE(
      std::all_of(memory.data(), memory.data() + kBytes, [](std::byte b) { return b == std::byte{}; }));
}

TEST(SharedMemory, WritesOfAChildAreVisible) {
  const auto memory = SharedMemory::create("test", kBytes);
  testing::Child child([&] {
    memory.data()[kBytes - 1] = std::byte{7};
    return true;
  });
  ASSERT_TRUE(child.passed());
  EXPECT_EQ(memory.data()[kBytes - 1], std::byte{7});
}

TEST(SharedMemory, AChildThatMapsTheDescriptorSeesAndWritesTheSameBytes) {
  const auto memory = SharedMemory::create("test", kBytes);
  memory.data()[1] = std::byte{11};
  testing::Child child([&] {
    const auto mapped = SharedMemory::map(copy_of(memory.fd()));
    mapped.data()[2] = std::byte{22};
    return mapped.size() == kBytes && mapped.data() != memory.data() && mapped.data()[1] == std::byte{11};
  });
  ASSERT_TRUE(child.passed());
  EXPECT_EQ(memory.data()[2], std::byte{22});
}

TEST(SharedMemory, AtomicsInItWorkBetweenProcesses) {
  const auto memory = SharedMemory::create("test", kBytes);
  auto* const counter = new (memory.data()) std::atomic<std::uint64_t>(0);
  const auto add = [&] {
    for (int i = 0; i < 100'000; ++i) counter->fetch_add(1);
    return true;
  };
  testing::Child child(add);
  add();
  ASSERT_TRUE(child.passed());
  EXPECT_EQ(counter->load(), 200'000U);
}

TEST(SharedMemory, LivesUntilTheLastMappingEnds) {
  SharedMemory last;
  {
    const auto first = SharedMemory::create("test", kBytes);
    first.data()[5] = std::byte{5};
    last = SharedMemory::map(copy_of(first.fd()));
  }
  EXPECT_EQ(last.data()[5], std::byte{5});
}

TEST(SharedMemory, ItsSizeIsSealed) {
  const auto memory = SharedMemory::create("test", kBytes);
  for (const off_t bytes : {off_t{0}, off_t{4096}, off_t{10 * kBytes}}) {
    EXPECT_EQ(::ftruncate(memory.fd(), bytes), -1) << bytes;
    EXPECT_EQ(errno, EPERM) << bytes;
  }
  memory.data()[kBytes - 1] = std::byte{1};  // still there
  EXPECT_EQ(SharedMemory::map(copy_of(memory.fd())).size(), kBytes);
}

TEST(SharedMemory, IsNotInheritedByOtherPrograms) {
  const auto memory = SharedMemory::create("test", kBytes);
  EXPECT_NE(::fcntl(memory.fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(SharedMemory, MovesLeaveNothingBehind) {
  auto from = SharedMemory::create("test", kBytes);
  auto* const data = from.data();
  SharedMemory to(std::move(from));
  EXPECT_EQ(to.data(), data);
  EXPECT_EQ(to.size(), kBytes);
  EXPECT_EQ(from.data(), nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(from.size(), 0U);
  EXPECT_EQ(from.fd(), -1);
}

TEST(SharedMemory, CommittedPartsUseRealMemory) {
  const auto memory = SharedMemory::create("test", std::size_t{1} << 40U);
  EXPECT_EQ(real_bytes(memory), 0U);
  memory.commit(std::size_t{1} << 39U, 5 * 4096, "a test");
  EXPECT_EQ(real_bytes(memory), 5U * 4096);
  memory.commit(std::size_t{1} << 39U, 5 * 4096, "a test");
  EXPECT_EQ(real_bytes(memory), 5U * 4096);
}

TEST(SharedMemory, HugePagesChangeNoByte) {
  const auto memory = SharedMemory::create("test", 2 * kHugePage);
  memory.commit(0, 2 * kHugePage, "a test");
  memory.data()[kHugePage] = std::byte{3};
  memory.prefer_huge_pages(0, 2 * kHugePage);
  EXPECT_EQ(memory.data()[kHugePage], std::byte{3});
  EXPECT_EQ(memory.data()[kHugePage + 1], std::byte{0});
}

TEST(SharedMemory, AShortageIsAnErrorThatNamesThePurpose) {
  const auto memory = SharedMemory::create("test", kBytes);
  const auto message = AllOf(HasSubstr("memory is short"), HasSubstr("for the purpose of a test"));
  EXPECT_THAT([&] { memory.commit(0, std::size_t{1} << 50U, "the purpose of a test"); },
              ThrowsMessage<Error>(message));
  // Beyond its sealed end.
  EXPECT_THAT([&] { memory.commit(0, 2 * kBytes, "the purpose of a test"); }, ThrowsMessage<Error>(message));
}

TEST(SharedMemory, SystemErrorsAreReported) {
  const auto too_large = std::numeric_limits<std::size_t>::max();
  EXPECT_THROW(SharedMemory::create("test", too_large), Error);
  EXPECT_THROW(SharedMemory::create("test", std::size_t{1} << 60U), Error);
  EXPECT_THROW(SharedMemory::create("test", 0), Error);
  EXPECT_THROW(SharedMemory::create(std::string(1000, 'x'), kBytes), Error);
  EXPECT_THROW(SharedMemory::map(UniqueFd()), Error);
}

TEST(Memory, AvailableIsAtMostTheTotal) {
  EXPECT_GT(available_memory(), 0U);
  EXPECT_LE(available_memory(), total_memory());
}

}  // namespace
}  // namespace lockstep
