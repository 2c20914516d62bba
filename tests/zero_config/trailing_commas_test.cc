#include "zero_config/keys/trailing_commas.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace terrace {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

void ExpectEach(const Pairs& pairs) {
  for (const auto& [text, want] : pairs) {
    EXPECT_EQ(WithoutTrailingCommas(text), want) << text;
  }
}

void ExpectUnchanged(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    EXPECT_EQ(WithoutTrailingCommas(text), text);
  }
}

TEST(TrailingCommas, ACommaBeforeAClosingBracketIsBlank) {
  ExpectEach({{"{\"a\": 1,}", "{\"a\": 1 }"},
              {"[1,]", "[1 ]"},
              {"[[],{},]", "[[],{} ]"},
              {"[true , \n\t]", "[true   \n\t]"},
              {"{\"a\": [\"b\",],}", "{\"a\": [\"b\" ] }"}});
}

TEST(TrailingCommas, CommentsMayStandAroundIt) {
  ExpectEach({{"[1, // one, ]\n]", "[1  // one, ]\n]"},
              {"[1 /* , */ , /* } */ ]", "[1 /* , */   /* } */ ]"},
              {"[1 // ,\n,]", "[1 // ,\n ]"}});
}

TEST(TrailingCommas, TextsInQuotesStay) {
  ExpectUnchanged({"[\",]\"]", "{\"a,}\": \"\\\",]\"}", "[\"//\", 1]",
                   "[\"/*\", 2, \"*/\"]"});
  ExpectEach({{"[\"\\\\\",]", "[\"\\\\\" ]"}});
}

TEST(TrailingCommas, OtherCommasStay) {
  ExpectUnchanged({"[,]", "{,}", "[1,,]", "{\"a\":,}", "[1],", ",", "[1, 2]"});
}

TEST(TrailingCommas, WhatDoesNotEndStays) {
  ExpectUnchanged({"", "[1,", "[\"a", "[\"a\\", "[1, /* ", "[1, //", "/"});
}

}  // namespace
}  // namespace terrace
