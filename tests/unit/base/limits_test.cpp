// SPDX-License-Identifier: BSD-3-Clause
#include "base/limits.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <new>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

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

TEST(Limits, AddressSpaceIsDividedAmongRanks) {
  testing::Child child([] {
    set_limit(RLIMIT_AS, rlim_t{64} << 30);
    const auto of_two = shareable_bytes(2), of_eight = shareable_bytes(8);
    return of_two <= *address_space_left() / 4 + 4096 && of_eight <= of_two;
  });
  EXPECT_TRUE(child.passed());
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
  require_threads(3, "the test");
  testing::Child child([] {
    constexpr rlim_t much = rlim_t{1} << 40U;
    set_limit(RLIMIT_AS, much);
    set_limit(RLIMIT_AS, much - *address_space_left() + (1 << 20U));  // less than the stack of a thread
    try {
      require_threads(16, "the test");  // more than glibc keeps stacks of ended threads for
      return false;
    } catch (const Error& error) {
      return contains(error.what(), "the test needs 16 threads, and ") &&
             contains(error.what(), "`ulimit -v`");
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
