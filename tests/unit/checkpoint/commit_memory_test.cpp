// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/commit_memory.h"

#include <atomic>
#include <csignal>
#include <random>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "base/run_memory.h"
#include "base/shared_memory.h"
#include "base/unique_fd.h"
#include "support/error_of.h"

namespace lockstep::checkpointing {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

UniqueFd new_file() { return UniqueFd(::memfd_create("commits", 0)); }

std::int64_t file_size(const UniqueFd& file) {
  struct stat status {};
  EXPECT_EQ(::fstat(file.get(), &status), 0);
  return status.st_size;
}

std::int64_t allocated(const UniqueFd& file) {
  struct stat status {};
  EXPECT_EQ(::fstat(file.get(), &status), 0);
  return status.st_blocks * 512;
}

// Differs from commit to commit, in its size too.
Value state_of(std::int64_t number) {
  const auto rows = 1 + number % 13 * (number % 13);
  return Dict{{"number", number},
              {"weights", torch::full({rows, 1000}, number, torch::kLong)},
              {"names", List{"a", std::string(static_cast<std::size_t>(number % 1000), 'b')}}};
}

void write_commit(CommitMemory& memory, std::int64_t number, const Value& state) {
  memory.write(number, {{.key = 0, .state = state}});
}

Value read_commit(const CommitMemory& memory, std::int64_t number) { return memory.read(number, 0); }

TEST(CommitMemory, HasTheTwoNewestCommits) {
  const auto file = new_file();
  CommitMemory memory(file.get());
  EXPECT_THAT(memory.numbers(), IsEmpty());
  for (std::int64_t number = 0; number < 20; ++number) write_commit(memory, number, state_of(number));
  EXPECT_THAT(memory.numbers(), ElementsAre(18, 19));
  EXPECT_TRUE(equal(read_commit(memory, 18), state_of(18)));
  EXPECT_TRUE(equal(read_commit(memory, 19), state_of(19)));
  EXPECT_THAT(error_of([&] { read_commit(memory, 17); }), HasSubstr("no commit 17"));
  const CommitMemory other(file.get());
  EXPECT_THAT(other.numbers(), ElementsAre(18, 19));
  EXPECT_TRUE(equal(read_commit(other, 18), state_of(18)));
  memory.forget_after(18);
  EXPECT_THAT(other.numbers(), ElementsAre(18));
  write_commit(memory, 19, state_of(7));
  EXPECT_TRUE(equal(read_commit(other, 19), state_of(7)));
  memory.forget_after(-1);
  EXPECT_THAT(other.numbers(), IsEmpty());
}

TEST(CommitMemory, KeepsKindsStridesAndAliasesOfTensors) {
  const auto base =
      torch::arange(24, torch::kBFloat16).reshape({2, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast);
  const auto state = Dict{{"base", base},
                          {"view", base.select(0, 1)},
                          {"empty", torch::empty({0, 3})},
                          {"scalar", torch::tensor(2.5, torch::kDouble)},
                          {"expanded", torch::ones({1}).expand({4})},
                          {"flags", torch::tensor({true, false})},
                          {"rest", Tuple{None{}, true, 1, -0.0, "text", at::Device(at::kCPU), at::kHalf}}};
  const auto file = new_file();
  CommitMemory memory(file.get());
  write_commit(memory, 0, state);
  const auto read = read_commit(memory, 0);
  EXPECT_TRUE(equal(read, state));
  for (const auto* name : {"base", "view", "expanded"})
    EXPECT_EQ(read[name].as_tensor().strides(), state.at(name).as_tensor().strides()) << name;
  EXPECT_TRUE(read["view"].as_tensor().is_alias_of(read["base"].as_tensor()));
  base.zero_();
  write_commit(memory, 2, state);
  EXPECT_EQ(read["base"].as_tensor().sum().item<double>(), 276) << "what was read is a copy";
}

TEST(CommitMemory, AllocatesNothingForACommitOfTheSameSize) {
  const auto file = new_file();
  CommitMemory memory(file.get());
  const auto weights = torch::zeros({1 << 20});
  const auto write = [&](std::int64_t number) {
    weights.fill_(number);
    write_commit(memory, number, Dict{{"weights", weights}, {"step", number}});
  };
  write(0);
  write(1);
  const auto size = file_size(file);
  const auto bytes = allocated(file);
  for (std::int64_t number = 2; number < 300; number += 37) write(number);
  EXPECT_EQ(file_size(file), size);
  EXPECT_EQ(allocated(file), bytes);
  EXPECT_LT(bytes, 2 * (4 << 20) + (1 << 20));
}

TEST(CommitMemory, SlotsGrowWithoutTheOther) {
  const auto file = new_file();
  CommitMemory memory(file.get());
  for (std::int64_t number = 0; number < 12; ++number) {
    const auto count = (number + 1) * 20'000;
    write_commit(memory, number, Dict{{"weights", torch::full({count}, number)}});
    for (const auto there : memory.numbers()) {
      const auto weights = read_commit(memory, there)["weights"].as_tensor();
      EXPECT_EQ(weights.numel(), (there + 1) * 20'000);
      EXPECT_TRUE(weights.eq(there).all().item<bool>());
    }
  }
  // Memory of former extents is free again.
  EXPECT_LT(allocated(file), 8 * (12 + 11) * 20'000 + (256 << 10));
}

TEST(CommitMemory, ShortagesAreErrorsAndLeaveTheOtherSlot) {
  const auto file = new_file();
  CommitMemory memory(file.get());
  write_commit(memory, 0, state_of(0));
  write_commit(memory, 1, state_of(1));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit low{.rlim_cur = 1 << 20, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const auto limited = error_of([&] { write_commit(memory, 2, Dict{{"weights", torch::zeros({1 << 20})}}); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(limited, HasSubstr("`ulimit -f` allows files of 1.0 MiB; raise it"));
  EXPECT_THAT(memory.numbers(), ElementsAre(1));

  // Address space that has no memory behind it.
  const auto bytes = 2 * total_memory();
  void* const reserved =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(reserved, MAP_FAILED);
  const auto huge = torch::from_blob(reserved, {static_cast<std::int64_t>(bytes)}, torch::kByte);
  EXPECT_THAT(error_of([&] {
                write_commit(memory, 2, Dict{{"weights", huge}});
              }),
              HasSubstr("memory is short"));
  ::munmap(reserved, bytes);
  EXPECT_THAT(memory.numbers(), ElementsAre(1));
  EXPECT_TRUE(equal(read_commit(memory, 1), state_of(1)));
  write_commit(memory, 2, state_of(2));
  EXPECT_TRUE(equal(read_commit(memory, 2), state_of(2)));
  EXPECT_THAT(memory.numbers(), ElementsAre(1, 2));

  EXPECT_THAT(error_of([&] {
                write_commit(memory, 3, Dict{{"weights", at::Tensor()}});
              }),
              HasSubstr("undefined"));
  EXPECT_THAT(memory.numbers(), ElementsAre(1, 2)) << "a value that cannot be saved changes nothing";
}

TEST(CommitMemory, OfAnotherVersionIsRefused) {
  const auto file = new_file();
  CommitMemory(file.get()).write(0, {{.key = 0, .state = state_of(0)}});
  const std::uint32_t format = 77;
  ASSERT_EQ(::pwrite(file.get(), &format, sizeof(format), sizeof(std::uint32_t)),
            static_cast<ssize_t>(sizeof(format)));
  EXPECT_THAT(error_of([&] { CommitMemory{file.get()}; }),
              HasSubstr("of format 77, and this program reads format 2"));
}

std::vector<CommitMemory::Part> two_parts(std::int64_t number) {
  return {{.key = 7, .state = state_of(number)}, {.key = 8, .state = state_of(number + 1)}};
}

// As a rank gets a copy from another, and keeps it beside its own commits.
TEST(CommitMemory, PartsMoveToAnother) {
  const auto first = new_file();
  const auto second = new_file();
  CommitMemory own(first.get());
  CommitMemory others(second.get());
  CommitMemory copies(second.get(), CommitMemory::Use::copies);
  for (std::int64_t number = 0; number < 20; ++number) {
    own.write(number, two_parts(number));
    others.write(number, {{.key = 9, .state = state_of(number + 2)}});
    const auto size = own.bytes(number, 8).nbytes() + 640;
    const auto rest = own.bytes(number, 7);
    const auto room = copies.begin(number, size + rest.nbytes());
    EXPECT_FALSE(copies.has(number));
    room.narrow(0, 0, static_cast<std::int64_t>(size)).copy_(own.bytes(number, 8, size));
    room.narrow(0, static_cast<std::int64_t>(size), rest.numel()).copy_(rest);
    copies.complete(number);
    EXPECT_THAT(copies.keys(number), ElementsAre(8, 7));
    for (const auto there : copies.numbers()) {
      EXPECT_TRUE(equal(copies.read(there, 7), state_of(there)));
      EXPECT_TRUE(equal(copies.read(there, 8), state_of(there + 1)));
      EXPECT_TRUE(equal(others.read(there, 9), state_of(there + 2)));
    }
  }
  EXPECT_THAT(copies.numbers(), ElementsAre(18, 19));
}

TEST(CommitMemory, EqualStatesAreEqualBytes) {
  const auto first = new_file();
  const auto second = new_file();
  CommitMemory one(first.get());
  CommitMemory other(second.get());
  for (std::int64_t number = 0; number < 12; ++number) other.write(number, two_parts(12 - number));
  one.write(12, two_parts(5));
  other.write(12, two_parts(5));
  for (const auto key : {7, 8}) EXPECT_TRUE(one.bytes(12, key).equal(other.bytes(12, key)));
}

TEST(CommitMemory, RefusesWhatIsNoPartOfTheCommit) {
  const auto file = new_file();
  CommitMemory own(file.get());
  CommitMemory copies(file.get(), CommitMemory::Use::copies);
  own.write(4, two_parts(4));
  const auto bytes = own.bytes(4, 7);
  copies.begin(6, bytes.nbytes()).copy_(bytes);
  EXPECT_THAT(error_of([&] { copies.complete(6); }), HasSubstr("has no commit 6 where it should be"));
  copies.begin(4, bytes.nbytes()).zero_();
  EXPECT_THAT(error_of([&] { copies.complete(4); }), HasSubstr("has no commit 4 where it should be"));
  copies.begin(4, bytes.nbytes() - 64).copy_(bytes.narrow(0, 0, bytes.numel() - 64));
  EXPECT_THAT(error_of([&] { copies.complete(4); }), HasSubstr("has no commit 4 where it should be"));
  EXPECT_THAT(copies.numbers(), IsEmpty());
  EXPECT_THAT(error_of([&] { own.read(4, 9); }), HasSubstr("commit 4 has no part 9"));
}

// What a process that writes commits tells its parent.
struct Progress {
  std::atomic<std::int64_t> complete{-1};
};

[[noreturn]] void write_forever(int file, std::int64_t first, Progress& progress) {
  at::set_num_threads(1);  // a fork does not copy the threads of a pool
  CommitMemory memory(file);
  for (std::int64_t number = first;; ++number) {
    write_commit(memory, number, state_of(number));
    progress.complete = number;
  }
}

// Several processes in turn write to the memory of a run, and each is killed at any moment.
TEST(CommitMemory, IsCompleteAfterAKillAtAnyMoment) {
  const auto run = RunMemory::create(1);
  auto shared = SharedMemory::create("progress", 4096);
  auto& progress = *new (shared.data()) Progress;
  const auto seed = std::random_device()();
  std::mt19937 random(seed);
  std::int64_t first = 0;
  for (int round = 0; round < 15; ++round) {
    const auto pid = ::fork();
    if (pid == 0) write_forever(run.commits(0), first, progress);
    const auto least = first + static_cast<std::int64_t>(random() % 16);
    while (progress.complete < least) ::sched_yield();
    for (auto spins = random() % 200'000; spins > 0; --spins)
      std::atomic_signal_fence(std::memory_order_seq_cst);
    ::kill(pid, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(status));
    const CommitMemory memory(run.commits(0));
    const std::int64_t complete = progress.complete;
    const auto numbers = memory.numbers();
    ASSERT_THAT(numbers, ::testing::Contains(complete)) << "seed " << seed;
    ASSERT_LE(numbers.back(), complete + 1) << "seed " << seed;
    for (const auto number : numbers)
      ASSERT_TRUE(equal(read_commit(memory, number), state_of(number))) << "seed " << seed;
    first = numbers.back() + 1;
  }
}

}  // namespace
}  // namespace lockstep::checkpointing
