// SPDX-License-Identifier: BSD-3-Clause
// Headers that are not what they should be are refused, whatever is wrong with them.
#include <cstdint>
#include <fstream>
#include <ostream>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/serialize/safetensors.h>

#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string length_of(std::uint64_t length) {
  return {reinterpret_cast<const char*>(&length), sizeof(length)};
}

std::string whole(const std::string& header, std::size_t data_bytes) {
  return length_of(header.size()) + header + std::string(data_bytes, '\1');
}

void write(const std::string& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

struct Malformed {
  std::string name;
  std::string bytes;
  std::string complaint;
};

void PrintTo(const Malformed& malformed, std::ostream* out) { *out << malformed.name; }

std::string repeated(const std::string& piece, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += piece;
  return text;
}

// A file of one tensor of two bytes, and what its entry says.
Malformed tensor(const std::string& name, const std::string& entry, const std::string& complaint) {
  return {name, whole(R"({"a":{)" + entry + "}}", 2), complaint};
}

Malformed header(const std::string& name, const std::string& text, const std::string& complaint,
                 std::size_t data_bytes = 2) {
  return {name, whole(text, data_bytes), complaint};
}

// Two tensors of so many bytes, at these offsets, and a file of four bytes of data.
Malformed places(const std::string& name, const std::string& a, const std::string& b,
                 const std::string& complaint) {
  return header(name,
                R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[)" + a +
                    R"(]},"b":{"dtype":"U8","shape":[2],"data_offsets":[)" + b + "]}}",
                complaint, 4);
}

std::vector<Malformed> malformed_files() {
  const std::string good = R"("dtype":"U8","shape":[2],"data_offsets":[0,2])";
  return {
      {"Empty", "", "too few"},
      {"OnlyHalfALength", std::string(4, '\0'), "too few"},
      {"NoHeader", length_of(0), "'{'"},
      {"LengthBeyondTheFile", length_of(100) + "{}", "should have 100 bytes, but 2 are left"},
      {"LengthBeyondTheLimit", length_of(100'000'001) + "{}", "100000001"},
      {"LengthOfAllOnes", std::string(16, '\xff'), "18446744073709551615"},
      {"ZipFile", "PK\3\4" + std::string(100, 'x'), "not a safetensors file"},

      header("Text", "hello world", "'{'"),
      header("List", "[1, 2]", "'{'"),
      header("SpaceFirst", " {}", "'{'", 0),
      header("ByteOrderMark", "\xef\xbb\xbf{}", "'{'", 0),
      header("Unclosed", R"({"a":{)" + good + "}", "not valid JSON"),
      header("MoreAfterTheEnd", "{} {}", "not valid JSON", 0),
      header("ZeroAfterTheEnd", std::string("{}\0\0", 4), "byte 2 of it is 0", 0),
      header("Comment", "{/* a */}", "not valid JSON", 0),
      header("TrailingComma", R"({"a":{)" + good + "},}", "not valid JSON"),
      header("NoUtf8", "{\"\xff\xfe\":{" + good + "}}", "not valid JSON"),
      header("LoneSurrogate", R"({"\ud800":{)" + good + "}}", "not valid JSON"),
      header("UnclosedString", R"({"a)", "not valid JSON"),
      header("DeepLists", R"({"a":)" + repeated("[", 1'000'000), "a list where none belongs, at the key 'a'"),
      header("DeepObjects", repeated(R"({"a":)", 1'000'000), "a field nested more than 125 deep"),
      header("DeepShape", R"({"a":{"dtype":"U8","shape":)" + repeated("[", 1'000'000), "a list where none"),
      header("DeepMetadata", R"({"__metadata__":)" + repeated(R"({"a":)", 1'000'000), "an object where none"),
      header("EntryIsNumber", R"({"a":1})", "a number where none belongs"),
      header("EntryIsNull", R"({"a":null})", "null where none belongs"),
      header("EntryIsString", R"({"a":"b"})", "a string where none belongs"),
      header("EntryIsBool", R"({"a":true})", "a bool where none belongs"),
      header("KeyTwice", R"({"a":{)" + good + R"(},"a":{)" + good + "}}", "the key 'a' twice"),
      header("KeyTwiceInOtherWords", R"({"a":{)" + good + R"(},"\u0061":{)" + good + "}}",
             "the key 'a' twice"),
      header("MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", "'__metadata__' twice", 0),
      header("MetadataKeyTwice", R"({"__metadata__":{"k":"1","k":"2"}})", "'k' twice", 0),
      header("MetadataOfNumbers", R"({"__metadata__":{"k":1}})", "a number where none belongs", 0),
      header("MetadataIsList", R"({"__metadata__":[]})", "a list where none belongs", 0),
      header("MetadataIsNested", R"({"__metadata__":{"k":{}}})", "an object where none belongs", 0),

      tensor("NoDtype", R"("shape":[2],"data_offsets":[0,2])", "no dtype"),
      tensor("NoShape", R"("dtype":"U8","data_offsets":[0,2])", "no shape"),
      tensor("NoOffsets", R"("dtype":"U8","shape":[2])", "no two data_offsets"),
      tensor("Nothing", "", "tensor 'a' has no dtype"),
      tensor("DeepUnknownField", good + R"(,"more":)" + repeated("[", 1'000'000),
             "tensor 'a' has a field nested more than 125 deep"),
      tensor("FieldTwice", good + R"(,"shape":[2])", "the field shape twice"),
      tensor("UnknownDtype", R"("dtype":"F99","shape":[2],"data_offsets":[0,2])", "'F99'"),
      tensor("HalfBytes", R"("dtype":"F4","shape":[4],"data_offsets":[0,2])", "'F4'"),
      tensor("DtypeIsNumber", R"("dtype":1,"shape":[2],"data_offsets":[0,2])", "a number where none belongs"),
      tensor("ShapeIsNumber", R"("dtype":"U8","shape":2,"data_offsets":[0,2])",
             "a number where none belongs"),
      tensor("ShapeOfStrings", R"("dtype":"U8","shape":["2"],"data_offsets":[0,2])", "a string where none"),
      tensor("NegativeShape", R"("dtype":"U8","shape":[-2],"data_offsets":[0,2])", "a negative number"),
      tensor("FractionalShape", R"("dtype":"U8","shape":[2.0],"data_offsets":[0,2])", "not a 64-bit integer"),
      tensor("ShapeOfExponents", R"("dtype":"U8","shape":[1e999],"data_offsets":[0,2])", "not valid JSON"),
      tensor("ShapeBeyond63Bits", R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,2])",
             "impossible size 9223372036854775808"),
      tensor("ShapeBeyond64Bits", R"("dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,2])",
             "not a 64-bit integer"),
      tensor("ProductOverflows", R"("dtype":"U8","shape":[4294967296,4294967297],"data_offsets":[0,2])",
             "impossible shape [4294967296, 4294967297]"),
      // Modulo 2^64 this equals the 2 bytes of data.
      tensor("ProductOverflowsToWhatIsThere",
             R"("dtype":"I16","shape":[9223372036854775807,9223372036854775807],"data_offsets":[0,2])",
             "impossible shape"),
      tensor("BytesOverflow", R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,2])",
             "impossible shape"),
      tensor("StridesOfAnEmptyOneOverflow",
             R"("dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0])", "impossible shape"),
      tensor("ManyDimensions",
             R"("dtype":"U8","shape":[)" + repeated("1,", 2000) + R"(2],"data_offsets":[0,2])",
             "more than 1000 dimensions"),
      tensor("TooFewBytes", R"("dtype":"F32","shape":[2],"data_offsets":[0,2])",
             "needs 8 bytes, but data_offsets gives it 2"),
      tensor("TooManyBytes", R"("dtype":"U8","shape":[1],"data_offsets":[0,2])",
             "needs 1 bytes, but data_offsets gives it 2"),
      tensor("OneOffset", R"("dtype":"U8","shape":[2],"data_offsets":[2])", "no two data_offsets"),
      tensor("ThreeOffsets", R"("dtype":"U8","shape":[2],"data_offsets":[0,2,4])", "more than two"),
      tensor("NegativeOffsets", R"("dtype":"U8","shape":[2],"data_offsets":[-2,0])", "a negative number"),
      tensor("BackwardOffsets", R"("dtype":"U8","shape":[2],"data_offsets":[2,0])", "ends before it starts"),
      tensor("BackwardOffsetsOfTheRightDifference",
             R"("dtype":"U8","shape":[2],"data_offsets":[18446744073709551615,1])", "ends before it starts"),
      tensor("DataBeyondTheFile", R"("dtype":"U8","shape":[3],"data_offsets":[0,3])", "cut short"),
      tensor("FarBeyondTheFile",
             R"("dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807])",
             "cut short"),
      tensor("DataLeftOver", R"("dtype":"U8","shape":[1],"data_offsets":[0,1])", "belong to no tensor"),
      tensor("HoleAtTheStart", R"("dtype":"U8","shape":[1],"data_offsets":[1,2])", "a hole"),

      places("Hole", "0,2", "3,5", "tensor 'b' starts at 3 instead of 2: there is a hole"),
      places("Overlap", "0,2", "1,3", "tensor 'b' starts at 1 instead of 2: there is an overlap"),
      places("SamePlace", "0,2", "0,2", "an overlap"),
      header("NoTensorsButData", "{}", "belong to no tensor"),
  };
}

class MalformedSafetensors : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedSafetensors, IsRejectedNamingTheFile) {
  const TempFolder folder;
  const auto file = folder.file("bad.safetensors");
  write(file, GetParam().bytes);
  const auto expect_refusal = [&](const auto& open) {
    try {
      open();
      ADD_FAILURE() << "accepted";
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), StartsWith(file + ": "));
      EXPECT_THAT(error.what(), HasSubstr(GetParam().complaint));
      EXPECT_LT(std::string_view(error.what()).size(), 1000U);
    }
  };
  expect_refusal([&] { safetensors::load_file(file); });
  expect_refusal([&] { safetensors::load_file(file, {.mmap = true}); });
  expect_refusal([&] { const safetensors::SafeOpen opened(file); });
}

INSTANTIATE_TEST_SUITE_P(Header, MalformedSafetensors, ::testing::ValuesIn(malformed_files()),
                         [](const auto& file) { return file.param.name; });

TEST(SafetensorsHeader, MayBePaddedAndInAnyOrder) {
  const TempFolder folder;
  const auto file = folder.file("odd.safetensors");
  write(file, whole("{ \"late\" : {\"data_offsets\":[2,6],\"shape\":[],\"dtype\":\"F32\"},\n\t"
                    "\"none\":{\"dtype\":\"I64\",\"shape\":[3,0],\"data_offsets\":[2,2]},"
                    "\"early\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}   ",
                    6));
  const auto tensors = safetensors::load_file(file);
  ASSERT_EQ(tensors.size(), 3U);
  EXPECT_EQ(tensors.begin()->key.as_string(), "late");
  EXPECT_EQ(tensors.at("late").as_tensor().dim(), 0);
  EXPECT_EQ(tensors.at("none").as_tensor().sizes(), (std::vector<std::int64_t>{3, 0}));
  EXPECT_EQ(tensors.at("early").as_tensor().sizes(), std::vector<std::int64_t>{2});
}

// Whatever is damaged, a file is read or refused; nothing else is ever thrown.
TEST(SafetensorsHeader, RandomDamageIsReadOrRejected) {
  const TempFolder folder;
  const auto file = folder.file("damaged.safetensors");
  const auto good = whole(
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":)"
      R"("I64","shape":[],"data_offsets":[24,32]},"c":{"dtype":"U8","shape":[0],"data_offsets":[32,32]}})",
      32);
  const std::string letters = "0123456789{}[]\",:- \\eE.\xff" + std::string(1, '\0');
  std::mt19937 random(1);
  const auto below = [&](std::size_t limit) { return random() % limit; };
  int refused = 0;
  constexpr int rounds = 5000;
  for (int round = 0; round < rounds; ++round) {
    auto damaged = good;
    for (auto changes = 1 + below(3); changes > 0; --changes) {
      damaged[below(good.size() - 32)] = letters[below(letters.size())];
    }
    write(file, damaged);
    try {
      safetensors::load_file(file, {.mmap = round % 2 == 0});
    } catch (const CheckpointError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, rounds / 2);
}

TEST(SafetensorsHeader, AnUnopenableFileIsAnError) {
  EXPECT_THROW(safetensors::load_file("/no/such/file.safetensors"), CheckpointError);
  EXPECT_THROW(safetensors::load_file("/tmp"), CheckpointError);
}

}  // namespace
}  // namespace lockstep::testing
