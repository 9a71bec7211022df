// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <dlfcn.h>
#include <pthread.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <lockstep/serialize/torch_file.h>

#include "serialize/storage.h"

namespace lockstep::testing {
namespace {

bool has_no_threads = false;

}  // namespace
}  // namespace lockstep::testing

// In the place of the C library's, for a process that has all the threads that it may have.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                              void* argument) noexcept {
  if (lockstep::testing::has_no_threads) return EAGAIN;
  static const auto next = reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return next(thread, attributes, start, argument);
}

namespace lockstep::testing {
namespace {

TEST(Checksums, AreComputedWithoutThreads) {
  const auto tensor = at::arange(1'000'000);
  const std::vector<c10::Storage> storages{tensor.storage()};
  const auto bytes = serialize::bytes_of(storages[0]);
  has_no_threads = true;
  serialize::Checksums checksums(storages);
  EXPECT_EQ(checksums.of(0, bytes), serialize::crc32_of(bytes));
  const auto file = save_bytes(Value(tensor));
  has_no_threads = false;
  EXPECT_TRUE(equal(load_bytes(file, {.verify = true}), tensor));
}

}  // namespace
}  // namespace lockstep::testing
