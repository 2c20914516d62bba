#include "examples/train_gpt/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace train_gpt {
namespace {

using ::terrace::TemporaryDirectory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> ReadTokens(const Corpus& corpus, int64_t first,
                                size_t count) {
  std::vector<int64_t> tokens(count, -1);
  const absl::Status status = corpus.Read(first, absl::MakeSpan(tokens));
  EXPECT_TRUE(status.ok()) << status;
  return tokens;
}

std::string OpenError(const std::string& path, int64_t vocab = 256) {
  const auto corpus = Corpus::Open(path, vocab, 2);
  return corpus.ok() ? "no error" : std::string(corpus.status().message());
}

TEST(CorpusTest, AFolderIsItsFilesInTheOrderOfTheirPaths) {
  TemporaryDirectory folder;
  folder.Write("b/1", "cd");
  folder.Write("a", "ab");
  folder.Write("b/0", "");
  folder.Write("c", "\xff");
  folder.Write(".hidden/x", "no");
  folder.Write(".too", "no");
  const auto corpus = Corpus::Open(folder.path(), 256, 5);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(corpus->size(), 5);
  EXPECT_THAT(ReadTokens(*corpus, 0, 5), ElementsAre('a', 'b', 'c', 'd', 255));
  EXPECT_THAT(ReadTokens(*corpus, 1, 3), ElementsAre('b', 'c', 'd'));
  EXPECT_THAT(ReadTokens(*corpus, 4, 1), ElementsAre(255));
  std::vector<int64_t> beyond(2);
  EXPECT_FALSE(corpus->Read(4, absl::MakeSpan(beyond)).ok());
}

TEST(CorpusTest, BinFilesAreLittleEndianTokensWithOrWithoutAHeader) {
  TemporaryDirectory folder;
  folder.Write("0.bin", std::string("\x01\x00\x00\xc4", 4));
  // 20240520, version 1, two tokens, and the rest of 256 integers.
  std::string header("\x88\xd8\x34\x01\x01\x00\x00\x00\x02\x00\x00\x00", 12);
  header.resize(1024);
  folder.Write("1.bin", header + std::string("\x05\x00\x06\x00", 4));
  const auto corpus = Corpus::Open(folder.path(), 50304, 2);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_THAT(ReadTokens(*corpus, 0, 4), ElementsAre(1, 0xc400, 5, 6));
}

TEST(CorpusTest, MistakesAreOneLineWithThePath) {
  TemporaryDirectory folder;
  const std::string empty = folder.Write("empty", "");
  EXPECT_THAT(OpenError(empty), HasSubstr(empty + " is empty"));
  EXPECT_THAT(OpenError(folder.path()), HasSubstr("is empty"));
  EXPECT_THAT(OpenError(folder.Write("short", "x")), HasSubstr("too short"));
  EXPECT_THAT(OpenError(folder.path() + "/none"),
              HasSubstr("/none: no such file or folder"));
  EXPECT_THAT(OpenError("/dev/null"), HasSubstr("not a file or a folder"));
  EXPECT_THAT(OpenError(folder.Write("odd.bin", "abc")),
              HasSubstr("no row of uint16 tokens: 3 bytes"));
  EXPECT_THAT(OpenError(folder.path()), HasSubstr("mixes .bin token files"));
  EXPECT_THAT(OpenError(folder.Write("text", "abcd"), 100),
              HasSubstr("--vocab 100 is too small"));
}

TEST(CorpusTest, ATokenBeyondTheVocabularyIsNamed) {
  TemporaryDirectory folder;
  const auto corpus = Corpus::Open(
      folder.Write("a.bin", std::string("\0\0\x39\x30", 4)), 12345, 2);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  std::vector<int64_t> tokens(2);
  EXPECT_THAT(std::string(corpus->Read(0, absl::MakeSpan(tokens)).message()),
              HasSubstr("holds token 12345, and --vocab is 12345"));
}

TEST(CorpusTest, AFileThatShrankIsAnError) {
  TemporaryDirectory folder;
  const std::string path = folder.Write("text", "abcdef");
  const auto corpus = Corpus::Open(path, 256, 2);
  ASSERT_TRUE(corpus.ok());
  folder.Write("text", "ab");
  std::vector<int64_t> tokens(3);
  EXPECT_THAT(std::string(corpus->Read(2, absl::MakeSpan(tokens)).message()),
              HasSubstr("cannot read 3 bytes of " + path));
}

TEST(CorpusTest, BatchesDependOnSeedStepAndMicroBatchOnly) {
  TemporaryDirectory folder;
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 31 % 251);
  const auto corpus = Corpus::Open(folder.Write("text", text), 256, 65);
  ASSERT_TRUE(corpus.ok());
  const auto batch = [&](uint64_t seed, int64_t step, int64_t micro) {
    std::vector<int64_t> tokens;
    EXPECT_TRUE(ReadBatch(*corpus, seed, step, micro, 3, 64, &tokens).ok());
    EXPECT_EQ(tokens.size(), 3u * 65);
    return tokens;
  };
  const auto first = batch(1, 1, 0);
  EXPECT_EQ(first, batch(1, 1, 0));
  EXPECT_NE(first, batch(2, 1, 0));
  EXPECT_NE(first, batch(1, 2, 0));
  EXPECT_NE(first, batch(1, 1, 1));
  // Each row is a stretch of the text as it stands.
  for (int row = 0; row < 3; ++row) {
    std::string stretch;
    for (int i = 0; i < 65; ++i) {
      stretch += static_cast<char>(first[row * 65 + i]);
    }
    EXPECT_NE(text.find(stretch), std::string::npos) << row;
  }
}

TEST(CorpusTest, ABatchFitsATextOfExactlyOneRow) {
  TemporaryDirectory folder;
  const auto corpus = Corpus::Open(folder.Write("text", "abc"), 256, 3);
  ASSERT_TRUE(corpus.ok());
  std::vector<int64_t> tokens;
  ASSERT_TRUE(ReadBatch(*corpus, 7, 1, 0, 1, 2, &tokens).ok());
  EXPECT_THAT(tokens, ElementsAre('a', 'b', 'c'));
}

}  // namespace
}  // namespace train_gpt
