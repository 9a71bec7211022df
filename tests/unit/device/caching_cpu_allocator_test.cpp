// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <lockstep/device/device.h>

namespace lockstep {
namespace {

constexpr std::int64_t kLarge = 9'000'000;  // float32: 36 MB

TEST(CachingCpuAllocator, ReusesTheMemoryOfALargeTensor) {
  enable_caching_cpu_allocator();
  const void* before = nullptr;
  {
    const auto first = at::full({kLarge}, 1.F);
    before = first.const_data_ptr();
  }
  const auto second = at::empty({kLarge});
  EXPECT_EQ(second.const_data_ptr(), before);
  EXPECT_EQ(second.const_data_ptr<float>()[kLarge / 2], 1.F) << "the kernel has cleared the pages";
}

TEST(CachingCpuAllocator, FreesMemoryOfLibTorchsAllocator) {
  auto* const usual = c10::GetDefaultCPUAllocator();
  enable_caching_cpu_allocator();
  auto* const caching = c10::GetCPUAllocator();
  ASSERT_NE(caching, usual);
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{40'000'000}}) {
    caching->raw_deallocate(usual->raw_allocate(bytes));
  }
  // It starts at an address at which a block could start.
  constexpr std::size_t kAligned = 2 * 1024 * 1024;
  caching->raw_deallocate(::aligned_alloc(kAligned, kAligned));
}

TEST(CachingCpuAllocator, WorksInTheChildOfAFork) {
  enable_caching_cpu_allocator();
  std::atomic<bool> over{false};
  std::thread other([&] {
    while (!over) (void)at::empty({kLarge});
  });
  for (int i = 0; i < 20; ++i) {
    const auto child = ::fork();
    if (child == 0) {
      ::alarm(20);
      ::_exit(at::empty({kLarge}).defined() ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
  over = true;
  other.join();
}

// Memory that RLIMIT_DATA counts.
rlim_t data_bytes() {
  std::ifstream file("/proc/self/statm");
  rlim_t pages = 0;
  for (int field = 0; field < 6; ++field) file >> pages;
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

// In a child with 100 MB more than it has, the most of which idle blocks occupy.
int exit_code_under_limit(const std::function<bool()>& body) {
  const auto child = ::fork();
  if (child == 0) {
    ::alarm(20);
    const auto bytes = data_bytes() + 100'000'000;
    const ::rlimit limit{bytes, bytes};
    ::setrlimit(RLIMIT_DATA, &limit);
    (void)at::empty({20'000'000});
    try {
      ::_exit(body() ? 0 : 1);
    } catch (const std::exception&) {
      ::_exit(2);
    }
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(CachingCpuAllocator, FreesIdleBlocksWhenOtherMemoryIsShort) {
  enable_caching_cpu_allocator();
  EXPECT_EQ(exit_code_under_limit([] { return std::vector<char>(90'000'000).size() == 90'000'000; }), 0);
  const auto small_tensors = [] {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 20; ++i) tensors.push_back(at::empty({1'000'000}));
    return tensors.size() == 20;
  };
  EXPECT_EQ(exit_code_under_limit(small_tensors), 0);
}

TEST(CachingCpuAllocator, HasOneDeleterForAllSizes) {
  enable_caching_cpu_allocator();
  auto* const allocator = c10::GetCPUAllocator();
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{100}, std::size_t{3'000'000}, std::size_t{40'000'000}}) {
    void* const memory = allocator->raw_allocate(bytes);
    if (bytes > 0) static_cast<char*>(memory)[bytes - 1] = 1;
    if (memory != nullptr) allocator->raw_deallocate(memory);
    const auto data = allocator->allocate(bytes);
    EXPECT_EQ(data.get_deleter(), allocator->raw_deleter());
  }
}

TEST(CachingCpuAllocator, NamesTheRequestedSizeWhenMemoryRunsOut) {
  enable_caching_cpu_allocator();
  try {
    (void)at::empty({std::int64_t{1} << 58});
    FAIL() << "there was memory";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(std::int64_t{1} << 60)), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace lockstep
