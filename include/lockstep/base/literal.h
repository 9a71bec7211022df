// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace lockstep {

/// A string literal as an argument of a template.
template <std::size_t size>
struct LiteralText {
  consteval LiteralText(const char (&literal)[size]) {
    std::copy_n(literal, size, text);
  }  // NOLINT: implicit
  char text[size] = {};
};

/// PyTorch's literals of an enum, in the order of its enumerators. The enum's namespace declares them:
///
///     enum class AnnealStrategy : std::uint8_t { cos, linear };
///     OneOf<"cos", "linear"> literals_of(AnnealStrategy);
template <LiteralText... allowed>
struct OneOf {
  static constexpr std::array<std::string_view, sizeof...(allowed)> kNames{allowed.text...};

  /// Does not compile for another text; the compiler's message lists the allowed ones.
  static consteval std::size_t index_of(std::string_view text) {
    const auto place = std::ranges::find(kNames, text);
    if (place == kNames.end()) allowed_are(static_cast<const char*>(allowed.text)...);
    return static_cast<std::size_t>(place - kNames.begin());
  }

 private:
  template <typename... Text>
  static constexpr void allowed_are(Text...) {
    if (sizeof...(Text) > 0) not_an_allowed_literal();
  }
  static void not_an_allowed_literal() {}
};

/// The type of an option that is an enumerator or PyTorch's literal for it. The compiler checks the literal:
/// `{.anneal_strategy = "linear"}` is as good as `{.anneal_strategy = optim::AnnealStrategy::linear}`, and
/// "liner" does not compile. For a text of the command line see parse_literal().
template <typename Enum>
class Literal {
 public:
  constexpr Literal(Enum value) : value_(value) {}  // NOLINT: implicit
  consteval Literal(const char* literal)            // NOLINT: implicit
      : value_(static_cast<Enum>(decltype(literals_of(Enum()))::index_of(literal))) {}

  constexpr operator Enum() const { return value_; }  // NOLINT: implicit
  /// PyTorch's literal.
  constexpr std::string_view text() const {
    return decltype(literals_of(Enum()))::kNames[static_cast<std::size_t>(value_)];
  }

 private:
  Enum value_;
};

/// A Literal, or PyTorch's None: std::nullopt.
template <typename Enum>
class OptionalLiteral : public std::optional<Enum> {
 public:
  constexpr OptionalLiteral(std::nullopt_t /*none*/ = std::nullopt) {}   // NOLINT: implicit
  constexpr OptionalLiteral(Enum value) : std::optional<Enum>(value) {}  // NOLINT: implicit
  consteval OptionalLiteral(const char* literal)
      : std::optional<Enum>(Literal<Enum>(literal)) {}  // NOLINT: implicit
};

/// The enumerator with PyTorch's literal `text`, or nullopt.
template <typename Enum>
constexpr std::optional<Enum> parse_literal(std::string_view text) {
  constexpr auto names = decltype(literals_of(Enum()))::kNames;
  const auto place = std::ranges::find(names, text);
  if (place == names.end()) return std::nullopt;
  return static_cast<Enum>(place - names.begin());
}

}  // namespace lockstep
