# What the README says of each kernel's registers and of the blocks that an SM holds by them: a row's beginning, and its
# end where shared memory does not say it. Input: usage's lines.
function blocks(registers, threads,    by, most) {
	by = int(65536 / (int((registers + 7) / 8) * 8 * threads))
	most = int(2048 / threads)
	return by < most ? by : most
}
function span(low, high) { return low == high ? low : low " - " high }
function put(name, registers) {
	if (!(name in low) || registers < low[name]) low[name] = registers
	if (!(name in high) || registers > high[name]) high[name] = registers
}
function row(name, text, threads, held) {
	if (!(name in low)) { print text " is not compiled"; return }
	print "| " text " | " threads " | " span(low[name], high[name]) (name in beside ? beside[name] : "") " |\t" \
		(held ? "| " span(blocks(high[name], threads), blocks(low[name], threads)) " |" : "")
}
{ name = $1; sub(/^_Z[0-9]+/, "", name) }
name ~ /^(embed|enter|post_norm|turns|tags_check)[0-9]/ { put("rows", $2) }
name ~ /^(given_finish|ranks_[a-z]+)[0-9]/ { put("finish", $2) }
name ~ /^(dequantise|rope_write|matmul_float|attend_merge|sample)[0-9]/ { sub(/[0-9]+[a-z_]*$/, "", name); put(name, $2) }
name ~ /^attend_rowI/ { put("row", $2) }
name ~ /^digest_(blocks|pages)/ { put(name ~ /blocks/ ? "blocks" : "pages", $2) }
name ~ /^(matmul_i8|given_product|attend_tile)I/ {
	split(name, part, /ILi|ELi|EEv/)
	key = part[1] part[3]
	if (name ~ /^given/ && part[3] == 4) { given[part[2]] = $2; next }
	put(part[1] == "attend_tile" && part[4] == 8 ? "deep" : key, $2)
}
END {
	beside["attend_tile1"] = " (head 512: " span(low["deep"], high["deep"]) ")"
	row("rows", "`embed`, `enter`, `post_norm`, `turns`, `tags_check`", 256, 1)
	row("dequantise", "`dequantise`", 256, 1)
	row("rope_write", "`rope_write`", 128, 1)
	row("matmul_i81", "`matmul_i8`, 8 tokens", 256, 1)
	row("matmul_i82", "`matmul_i8`, 16 tokens", 256, 1)
	row("matmul_i84", "`matmul_i8`, 32 tokens", 256, 1)
	row("matmul_float", "`matmul_float`", 256, 1)
	row("given_product1", "`given_product`, 8 tokens", 256, 1)
	print "| `given_product`, 32 tokens | 256 | " given[1] " (int8), " given[2] " (bf16), " given[3] " (e4m3) |\t| " \
		blocks(given[1], 256) ", " blocks(given[2], 256) ", " blocks(given[3], 256) " |"
	row("finish", "`given_finish`, `ranks_*`", 256, 1)
	row("row", "`attend_row`, 1 - 4 heads", 128, 1)
	row("attend_tile1", "`attend_tile`, 8 vectors", 128, 0)
	row("attend_tile4", "`attend_tile`, 32 vectors", 128, 0)
	row("attend_merge", "`attend_merge`", 128, 1)
	print "| `digest_blocks`, `digest_pages` | 128, 32 | " low["blocks"] ", " low["pages"] " |\t| " \
		blocks(high["blocks"], 128) ", " blocks(high["pages"], 32) " |"
	row("sample", "`sample`", 512, 1)
}
