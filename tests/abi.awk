# clients/client.h to a C program that prints what a compiled program counts on: every struct's size and each
# member's place and size, every enumerator, every HF_ macro, and, as they stand, the prototypes and types of functions.
# What it cannot read it says on a line "unread", so that nothing is passed over.
function member(struct_name, text,    name) {
	if (match(text, /\(\*[a-z_]+\)/)) {
		name = substr(text, RSTART + 2, RLENGTH - 3)
	} else {
		sub(/\[.*/, "", text)
		name = text
		sub(/.*[ *]/, "", name)
	}
	printf "AT(%s, %s);\n", struct_name, name
}
function declared(text,    parts, count, i) {
	gsub(/[ \t\n]+/, " ", text)
	gsub(/^ | $/, "", text)
	if (text == "")
		return
	if (inside == "struct") {
		printf "puts(\"member %s: %s\");\n", owner, text
		count = index(text, "(") ? 1 : split(text, parts, ",")
		if (count == 1)
			parts[1] = text
		for (i = 1; i <= count; i++)
			member(owner, parts[i])
	} else if (text ~ /^struct [a-z_]+$/) {
		printf "puts(\"opaque %s\");\n", text
	} else if (text ~ /^(typedef |int |void |bool |const char \*)/) {
		printf "puts(\"function %s\");\n", text
	} else {
		printf "puts(\"unread %s\");\n", text
	}
}
/^#define HF_[A-Z]+ / { printf "printf(\"macro %s %%llu\\n\", (unsigned long long)%s);\n", $2, $2; next }
/^#/ || /^extern "C"/ { next }
{ text = text $0 "\n" }
END {
	# The comments, then each declaration by its end.
	while ((start = index(text, "/*")) > 0)
		text = substr(text, 1, start - 1) " " substr(text, start + 1 + index(substr(text, start + 2), "*/") + 2)
	while (match(text, /[;{}]/)) {
		part = substr(text, 1, RSTART - 1)
		mark = substr(text, RSTART, 1)
		text = substr(text, RSTART + 1)
		if (mark == ";") {
			declared(part)
		} else if (mark == "{") {
			inside = part ~ /struct/ ? "struct" : "enum"
			owner = part
			gsub(/[ \t\n]+/, " ", owner)
			gsub(/^ | $|struct |enum /, "", owner)
			if (inside == "struct")
				printf "SIZE(%s);\n", owner
		} else if (inside == "enum") {
			count = split(part, parts, ",")
			for (i = 1; i <= count; i++) {
				name = parts[i]
				gsub(/[ \t\n]|=.*/, "", name)
				if (name != "")
					printf "printf(\"enum %s.%s %%d\\n\", (int)%s);\n", owner, name, name
			}
			inside = ""
		} else {
			inside = ""
		}
	}
}
