// Text in two aligned columns, as a terminal can have it (printable.h).
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace terrace::cli {

class Table {
 public:
  // An empty label goes on with the row above; an empty text is left out.
  void Add(const std::string& label, const std::string& text);
  // A text that is one line however long, such as a command to copy.
  void AddWhole(const std::string& label, const std::string& text);

  // Lines of at most `width` columns where blanks allow it.
  std::string Format(int width) const;

 private:
  struct Row {
    std::string label;
    std::string text;
    bool is_whole;
  };
  std::vector<Row> rows_;
};

// The words that are not empty, with `separator` between them.
std::string Join(const std::vector<std::string>& words,
                 const std::string& separator);

}  // namespace terrace::cli
