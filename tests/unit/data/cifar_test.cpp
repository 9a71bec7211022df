// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/data/vision.h>

#include "data/cifar_files.h"
#include "data/tar.h"
#include "support/error_of.h"
#include "unit/data/fixtures.h"

namespace lockstep::data {
namespace {

using namespace testing;  // NOLINT: the fixtures
using lockstep::testing::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

at::Tensor tensor_of(const std::string& bytes) {
  return at::from_blob(const_cast<char*>(bytes.data()), {static_cast<std::int64_t>(bytes.size())}, at::kByte)
      .clone();
}

std::string tar_refusal(const std::string& bytes) {
  return error_of<DataError>([&] { read_tar(tensor_of(bytes), "x.tar"); });
}

TEST(ReadTar, FindsTheFiles) {
  const auto files =
      read_tar(tensor_of(tar_bytes({{"a/b", "12"}, {"c", ""}, {"d", std::string(512, 'x')}})), "x");
  ASSERT_EQ(files.size(), 3U);
  EXPECT_TRUE(at::equal(files.at("a/b"), at::tensor({'1', '2'}, at::kByte)));
  EXPECT_EQ(files.at("c").numel(), 0);
  EXPECT_EQ(files.at("d").numel(), 512);
}

TEST(ReadTar, RefusesDamage) {
  const auto tar = tar_bytes({{"a", "12"}});
  for (const std::size_t size : {0, 1, 511, 512, 513, 1023, 1024, 1500}) {
    EXPECT_THAT(tar_refusal(tar.substr(0, size)), HasSubstr("x.tar: the tar archive is cut short")) << size;
  }
  for (const std::size_t at : {0, 124, 148, 345}) {
    auto damaged = tar;
    damaged[at] ^= 1;
    EXPECT_THAT(tar_refusal(damaged), HasSubstr("x.tar: the tar archive is damaged")) << at;
  }
}

TEST(CIFAR10, ReadsRecords) {
  const TempFolder root;
  write_file(root / "cifar-10-batches-bin/test_batch.bin",
             std::string("\1") + std::string(3072, '\xff') + std::string("\11") + std::string(3072, '\0'));
  const CIFAR10 test(root.path(), {.train = false});
  EXPECT_TRUE(at::equal(test.targets(), at::tensor({1, 9}, at::kLong)));
  const auto batch = test.get_batch(at::tensor({0}, at::kLong));
  EXPECT_EQ(batch.data.sizes(), at::IntArrayRef({1, 3, 32, 32}));
  EXPECT_EQ(batch.data.min().item<float>(), 1.0F);
  EXPECT_EQ(CIFAR10::class_to_idx().at("truck"), 9);
  EXPECT_EQ(CIFAR100::class_to_idx().at("worm"), 99);
}

TEST(CIFAR10, ExplainsHowToGetMissingFiles) {
  const TempFolder root;
  EXPECT_THAT(error_of<DataError>([&] { CIFAR10(root.path()); }),
              AllOf(HasSubstr("download = true"), HasSubstr("cifar-10-python.tar.gz")));
}

TEST(CIFAR10, RefusesOtherFiles) {
  const TempFolder root;
  const auto log_of = [&](const std::string& name, const std::string& bytes) {
    write_file(root / name, bytes);
    ::testing::internal::CaptureStderr();
    EXPECT_THROW(CIFAR10(root.path(), {.train = false}), DataError);
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string records = "cifar-10-batches-bin/test_batch.bin";
  EXPECT_THAT(log_of(records, std::string(3072, '\0')), HasSubstr("its 3072 bytes are not records of 3073"));
  EXPECT_THAT(log_of(records, ""), HasSubstr("should have a label from 0 to 9"));
  EXPECT_THAT(log_of(records, std::string(3073, '\12')), HasSubstr("should have a label from 0 to 9"));
  EXPECT_THAT(log_of("cifar-10-batches-py/test_batch", "abc"), HasSubstr("test_batch: its MD5 is"));
  EXPECT_THAT(log_of("cifar-10-binary.tar.gz", "abc"), HasSubstr("its MD5 is"));
}

// The dictionary of a batch, as protocol 2 writes it: the array's state and the labels vary.
std::string pickle_of(const std::string& state, const std::string& labels) {
  return "\x80\2}(U\4datacnumpy.core.multiarray\n_reconstruct\n)R" + state + "bU\6labels" + labels + "u.";
}

TEST(CIFAR10, RefusesHostilePickles) {
  const TempFolder root;
  auto files = cifar10_files();
  const auto log_of = [&](const std::string& bytes) {
    files.python.test.front().md5 =
        md5_hex({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
    write_file(root / "cifar-10-batches-py/test_batch", bytes);
    ::testing::internal::CaptureStderr();
    EXPECT_THROW(load_cifar(files, root.path(), false, {}, {}), DataError);
    return ::testing::internal::GetCapturedStderr();
  };
  using namespace std::string_literals;
  const auto dtype = "cnumpy\ndtype\n(U\2u1K\0K\1tR"s;
  const std::string no_images = "test_batch: is not a batch of CIFAR images";
  for (const auto& state :
       {")"s, "(K\1K\1K\1K\1K\1t"s,
        "(K\1(K\1M\0\14t"s + dtype +
            "\x89U\3"
            "abct",
        "(K\1(K\0M\0\14t"s + dtype + "\x89K\0t"s, "(K\1(K\0M\0\14t"s + dtype + "\x88U\0t"s,
        "(K\1(K\0t"s + dtype + "\x89U\0t"s, "(K\1(K\0M\0\14tcnumpy\ndtype\n)R\x89U\0t"s}) {
    EXPECT_THAT(log_of(pickle_of(state, "]")), HasSubstr(no_images)) << state;
  }
  const auto image = "(K\1(K\1M\0\14t"s + dtype + "\x89T\0\14\0\0"s + std::string(3072, 'x') + "t";
  EXPECT_THAT(log_of(pickle_of(image, "]")), HasSubstr("should have a label from 0 to 9"));
  EXPECT_THAT(log_of(pickle_of(image, "](K\12e")), HasSubstr("should have a label from 0 to 9"));
  EXPECT_THAT(log_of(pickle_of(image, "](U\1ae")), HasSubstr(no_images));
  EXPECT_THAT(log_of(pickle_of(image, "K\1")), HasSubstr(no_images));
  EXPECT_THAT(log_of("\x80\2cos\nsystem\n(U\4boomtR."), HasSubstr("os"));
  EXPECT_THAT(log_of("\x80\2]."), HasSubstr(no_images));
}

}  // namespace
}  // namespace lockstep::data
