// SPDX-License-Identifier: BSD-3-Clause
#include "base/limits.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <future>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/shared_memory.h"
#include "unit/base/child.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

void set_limit(int resource, rlim_t value) {
  const rlimit limit{.rlim_cur = value, .rlim_max = value};
  if (::setrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) throw Error(errno_text(errno));
}

// Sets `ulimit -v` so that so many bytes are left.
void leave_address_space(std::uint64_t bytes) {
  constexpr rlim_t much = rlim_t{1} << 40U;
  set_limit(RLIMIT_AS, much);
  set_limit(RLIMIT_AS, much - *address_space_left() + bytes);
}
constexpr std::uint64_t kLessThanAThreadNeeds = 1 << 20U;

TEST(Limits, ErrnoTextNamesTheLimitBehindIt) {
  EXPECT_EQ(errno_text(ENOENT), "No such file or directory");
  testing::Child child([] {
    set_limit(RLIMIT_NOFILE, 20);
    set_limit(RLIMIT_FSIZE, 1 << 20);
    return contains(errno_text(EMFILE), "(`ulimit -n` allows 20; raise it)") &&
           contains(errno_text(EFBIG), "(`ulimit -f` allows 1.0 MiB; raise it)");
  });
  EXPECT_TRUE(child.passed());
}

TEST(Limits, AWriteBeyondTheFileSizeIsAnError) {
  testing::Child child([] {
    set_limit(RLIMIT_FSIZE, 10);
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), std::fclose);
    const FileSizeErrors as_errors;
    const std::string text(10, 'x');
    if (::write(::fileno(file.get()), text.data(), text.size()) != 10) return false;
    return ::write(::fileno(file.get()), text.data(), text.size()) < 0 && errno == EFBIG;
  });
  EXPECT_TRUE(child.passed());
}

TEST(Limits, RanksShareWhatTheLimitsLeave) {
  EXPECT_LE(shareable_bytes(2), total_memory());
  testing::Child child([] {
    set_limit(RLIMIT_FSIZE, 64 << 20);
    if (shareable_bytes(2) != 64 << 20) return false;
    (void)SharedMemory::create("test", shareable_bytes(2));
    try {
      (void)SharedMemory::create("test", 65 << 20);
      return false;
    } catch (const Error& error) {
      return contains(error.what(), "`ulimit -f` allows files of 64.0 MiB; raise it");
    }
  });
  EXPECT_TRUE(child.passed());
}

TEST(Limits, AddressSpaceIsDividedAmongRanksAndGroups) {
  testing::Child child([] {
    leave_address_space(std::uint64_t{1} << 32U);
    const auto left = *address_space_left();
    if (shareable_bytes(8) > shareable_bytes(2)) return false;
    std::vector<SharedMemory> groups;
    std::uint64_t shared = 0;
    for (int group = 0; group < 10; ++group) {
      const auto bytes = shareable_bytes(2);
      for (int rank = 0; rank < 2; ++rank) groups.push_back(SharedMemory::create("test", bytes));
      shared += 2 * bytes;  // each of two ranks maps both
      if (group == 0 && shared < left / 5) return false;
    }
    const bool half_is_left = *address_space_left() > left * 49 / 100;
    groups.clear();
    return half_is_left && SharedMemory::mapped_bytes() == 0 && shareable_bytes(2) > left / 9;
  });
  EXPECT_TRUE(child.passed());
}

TEST(Limits, ASmallAddressSpaceIsRefused) {
  EXPECT_FALSE(address_space_shortage());
  testing::Child child([] {
    set_limit(RLIMIT_AS, 300 << 20);
    return address_space_shortage() &&
           contains(address_space_shortage()->text, "`ulimit -v` allows 300.0 MiB of address space");
  });
  EXPECT_TRUE(child.passed());
}

TEST(Limits, ARefusedCallIsNamed) {
  EXPECT_EQ(call_error_text("pidfd_open", EMFILE).find("pidfd_open: Too many open files"), 0U);
  EXPECT_THAT(call_error_text("pidfd_open", EPERM), HasSubstr("the call pidfd_open is refused"));
}

TEST(Limits, ASmallStackIsRefused) {
  EXPECT_FALSE(stack_shortage());
  testing::Child child([] {
    set_limit(RLIMIT_STACK, 64 * 1024);
    return stack_shortage() &&
           contains(stack_shortage()->text, "a stack of 64.0 KiB, and 128.0 KiB are needed");
  });
  EXPECT_TRUE(child.passed());
}

TEST(Limits, ThreadsThatCannotStartAreAnError) {
  const ReservedThreads three(3, "the test");
  testing::Child child([] {
    leave_address_space(kLessThanAThreadNeeds);
    try {
      const ReservedThreads many(16, "the test");  // more than glibc keeps stacks of ended threads for
      return false;
    } catch (const Error& error) {
      return contains(error.what(), "the test needs 16 threads, and ") &&
             contains(error.what(), "`ulimit -v`");
    }
  });
  EXPECT_TRUE(child.passed());
}

// A joined thread may still count.
TEST(Limits, ReservedThreadsDoNotCountAfterTheirEnd) {
  const auto threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  const auto before = threads();
  for (int round = 0; round < 200; ++round) {
    std::optional<ReservedThreads> reserved(std::in_place, 3, "the test");
    ASSERT_EQ(threads(), before + 3);
    reserved.reset();
    ASSERT_EQ(threads(), before);
  }
}

TEST(Limits, AThreadWithoutAPlaceIsAnErrorWithItsPurpose) {
  EXPECT_EQ(start_async("the test", [] { return 7; }).get(), 7);
  testing::Child child([] {
    leave_address_space(kLessThanAThreadNeeds);
    try {
      std::vector<std::future<void>> running;
      std::promise<void> over;
      const auto end = over.get_future().share();
      for (int i = 0; i < 16; ++i) running.push_back(start_async("the test", [end] { end.wait(); }));
      over.set_value();
      return false;
    } catch (const Error& error) {
      const bool named = contains(error.what(), "no thread could be started for the test: ") &&
                         contains(error.what(), "`ulimit -v`");
      ::_exit(named ? 0 : 1);  // the threads that did start wait
    }
  });
  EXPECT_TRUE(child.passed());
}

TEST(Limits, ExceptionsHaveReadableTexts) {
  EXPECT_THAT(exception_text(std::bad_alloc()), HasSubstr("memory is short"));
  EXPECT_EQ(exception_text(std::filesystem::filesystem_error(
                "status", "/x", std::make_error_code(std::errc::permission_denied))),
            "/x: Permission denied");
  EXPECT_THAT(
      exception_text(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again))),
      HasSubstr("a thread or process could not be started"));
  EXPECT_EQ(exception_text(Error("text")), "text");
}

}  // namespace
}  // namespace lockstep
